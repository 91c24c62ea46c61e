"""What gateway and worker agree on: contracts, codecs, settings, connections, the job store."""

from __future__ import annotations

import sys

#: redis-py can count its commands for OpenTelemetry, which nobody asks it to. For that it loads the
#: metrics of the SDK wherever that is installed, and with them 2.4 MB into every process.
_UNUSED = "opentelemetry.sdk.metrics"
if _UNUSED not in sys.modules and "redis" not in sys.modules:
    sys.modules[_UNUSED] = None  # type: ignore[assignment]
    try:
        import redis.asyncio  # noqa: F401
    except ImportError:  # the installer runs on a system's Python, which has none
        pass
    finally:
        del sys.modules[_UNUSED]
