"""The Python client: `from client import Sluice`, or `AsyncSluice`. Knows the HTTP API only.

Names are loaded when they are first used, so that a command starts without what it does not need.
"""

from __future__ import annotations

TYPE_CHECKING = False  # without the ten milliseconds of `typing`; type checkers know the name
if TYPE_CHECKING:
    from client.aio.client import AsyncSluice
    from client.aio.job import AsyncJobHandle
    from client.core.models import Event, Job, JobSummary
    from client.errors import (
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
    from client.sync.client import Sluice
    from client.sync.job import JobHandle

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

_HOMES = {
    "AsyncJobHandle": "client.aio.job",
    "AsyncSluice": "client.aio.client",
    "Event": "client.core.models",
    "Job": "client.core.models",
    "JobHandle": "client.sync.job",
    "JobSummary": "client.core.models",
    "Sluice": "client.sync.client",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_HOMES.get(name, "client.errors")), name)
    globals()[name] = found
    return found
