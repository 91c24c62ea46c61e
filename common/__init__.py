"""Code shared by gateway and worker: contracts, codecs, settings, connections, the job store."""

from __future__ import annotations

import sys

#: redis-py can count its commands for OpenTelemetry, which Sluice does not use. For that it imports
#: the metrics modules of the API, and of the SDK where it is installed. They cost every process
#: 3 MB, so their import is suppressed.
_UNUSED = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")
if "redis" not in sys.modules and not any(name in sys.modules for name in _UNUSED):
    sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:  # the installer runs on the system's Python, which may lack redis-py
        pass
    finally:
        for _name in _UNUSED:
            del sys.modules[_name]
