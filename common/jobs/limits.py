"""Limits of API keys, and concurrency limits by task such as `chat+plan+code:1,embed:4`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sluice.common.contracts.jobs import TASKS
from sluice.common.redis.scripts import Argument

_MINUTE_US = 60_000_000


class KeyLimits(NamedTuple):
    """Rate limit and quota of an API key, and the keys of their state. 0 means no limit."""

    rate_key: str
    active_key: str
    #: Microseconds between two jobs, and the size of a burst.
    interval_us: int = 0
    burst: int = 0
    #: Maximum number of unfinished jobs.
    max_jobs: int = 0


def interval_us(rate_per_min: float) -> int:
    """Microseconds between two jobs at a rate per minute."""
    return max(1, round(_MINUTE_US / rate_per_min))


_UNLIMITED: Final = KeyLimits("", "")


class AdmissionLimits(NamedTuple):
    """Limits on the core jobs that a request may start."""

    group: str
    backlog_limit: int
    #: Seconds a core job is kept.
    core_ttl_s: int
    limits: KeyLimits | None = None


def admission_arguments(admission: AdmissionLimits) -> list[Argument]:
    """The five arguments of `admission_at` in `common/jobs/lua/lib/admission.lua`."""
    return [admission.group, admission.backlog_limit, *(admission.limits or _UNLIMITED)[2:]]


def limit_keys(admission: AdmissionLimits) -> tuple[str, ...]:
    """The keys with the state of the caller's limits; empty without limits."""
    return admission.limits[:2] if admission.limits else ()


_AND: Final = "+"


class TaskLimit(NamedTuple):
    """A number of slots that some tasks share."""

    tasks: frozenset[str]
    slots: int

    @property
    def name(self) -> str:
        """The tasks in the order of the contract, so that all workers use the same name."""
        return group_name(self.tasks)


def group_name(tasks: Iterable[str]) -> str:
    """`chat+plan+code`, in the order of the contract; other tasks come last."""
    named = set(tasks)
    return _AND.join([*(task for task in TASKS if task in named), *sorted(named - set(TASKS))])


def parse_limits(text: str) -> tuple[TaskLimit, ...]:
    """Parse a setting; raises ValueError."""
    limits: list[TaskLimit] = []
    limited: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        names, _, number = (piece.strip() for piece in part.partition(":"))
        tasks = [task.strip() for task in names.split(_AND)]
        for task in tasks:
            if task not in TASKS:
                raise ValueError(
                    f"{part!r} names an unknown task {task!r}; tasks are {', '.join(TASKS)}"
                )
            if task in limited:
                raise ValueError(f"{task} is limited twice; name each task once")
            limited.add(task)
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(f"{part!r} must be tasks and a number from 1, such as {names}:1")
        limits.append(TaskLimit(frozenset(tasks), int(number)))
    return tuple(limits)
