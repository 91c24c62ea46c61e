"""The Python client: `from sluice import Sluice`, or `AsyncSluice`. It uses the HTTP API only.

Each name is imported on first use, which keeps the command line quick to start. Handler modules
import from `sluice.worker` instead.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`, whose import takes 10 ms; type checkers know the name
if TYPE_CHECKING:
    from sluice.aio.client import AsyncSluice
    from sluice.aio.jobs import AsyncJobHandle
    from sluice.api.jobs import Event, Job, JobSummary
    from sluice.errors import (
        BadAnswer,
        Broken,
        Conflict,
        Invalid,
        JobCanceled,
        JobFailed,
        Misconfigured,
        NotAllowed,
        NotFound,
        RateLimited,
        Refused,
        SluiceError,
        Unavailable,
        Unreachable,
        WaitTimeout,
    )
    from sluice.sync.client import Sluice
    from sluice.sync.jobs import JobHandle

__all__ = [
    "AsyncJobHandle",
    "AsyncSluice",
    "BadAnswer",
    "Broken",
    "Conflict",
    "Event",
    "Invalid",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobHandle",
    "JobSummary",
    "Misconfigured",
    "NotAllowed",
    "NotFound",
    "RateLimited",
    "Refused",
    "Sluice",
    "SluiceError",
    "Unavailable",
    "Unreachable",
    "WaitTimeout",
]

_MODULES = {
    "AsyncJobHandle": "sluice.aio.jobs",
    "AsyncSluice": "sluice.aio.client",
    "Event": "sluice.api.jobs",
    "Job": "sluice.api.jobs",
    "JobHandle": "sluice.sync.jobs",
    "JobSummary": "sluice.api.jobs",
    "Sluice": "sluice.sync.client",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES.get(name, "sluice.errors")), name)
    globals()[name] = value
    return value
