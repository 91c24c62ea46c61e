"""What bounds the core jobs that a request may start, as the scripts want to know it."""

from __future__ import annotations

from typing import Final, NamedTuple

from common.access_limits import Limits
from common.scripts import Argument

_UNLIMITED: Final = Limits("", "")


class Admission(NamedTuple):
    """What bounds the core jobs that a request may start."""

    group: str
    backlog_limit: int
    #: Seconds the record of a core job is kept.
    core_ttl_s: int
    limits: Limits | None = None


def admission_arguments(admission: Admission) -> list[Argument]:
    """The five arguments of `admission_at` in `common/lua/admission.lua`."""
    return [admission.group, admission.backlog_limit, *(admission.limits or _UNLIMITED)[2:]]


def limit_keys(admission: Admission) -> tuple[str, ...]:
    """Where the state of the caller's limits lies, if there are any."""
    return admission.limits[:2] if admission.limits else ()
