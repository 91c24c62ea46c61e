"""What gateway and worker agree on: contracts, codecs, settings, connections, the job store."""

from __future__ import annotations

import sys

#: redis-py can count its commands for OpenTelemetry, which nobody asks it to. For that it loads the
#: metrics of the API, and of the SDK wherever that is installed, and with them 3 MB into every
#: process.
_UNUSED = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")
if "redis" not in sys.modules and not any(name in sys.modules for name in _UNUSED):
    sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:  # the installer runs on a system's Python, which has none
        pass
    finally:
        for _name in _UNUSED:
            del sys.modules[_name]
