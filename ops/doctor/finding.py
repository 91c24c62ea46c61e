"""Checks and their findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.doctor.machine import Machine

#: The time limit of a check in seconds, unless it has its own.
TIMEOUT_S = 10.0


class Health(str, Enum):
    """The status of a finding."""

    OK = "ok"
    #: Worth knowing; no action is needed.
    NOTE = "note"
    #: Works now, and may cause trouble later.
    WARN = "warn"
    #: Does not work, or loses jobs.
    FAIL = "fail"
    #: Could not be checked, or does not exist here.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    status: Health
    #: What is there.
    seen: str
    #: Why that matters, or how it came about.
    cause: str = ""
    #: What to do, as a command where possible.
    fix: str = ""
    #: The name of the check; filled in by the runner.
    check: str = ""


class CheckSkipped(Exception):
    """Raised by a check that cannot be made here; the message says why."""


def ok(seen: str) -> Finding:
    return Finding(Health.OK, seen)


def note(seen: str, cause: str = "", fix: str = "") -> Finding:
    return Finding(Health.NOTE, seen, cause, fix)


def warn(seen: str, cause: str, fix: str) -> Finding:
    return Finding(Health.WARN, seen, cause, fix)


def fail(seen: str, cause: str, fix: str) -> Finding:
    return Finding(Health.FAIL, seen, cause, fix)


CheckFunction = Callable[["Machine"], "Finding | list[Finding]"]


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `meaning` and `remedy` are its row in docs/doctor.md."""

    name: str
    meaning: str
    remedy: str
    run: CheckFunction
    timeout_s: float = TIMEOUT_S

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]


def check(
    name: str, meaning: str, remedy: str, timeout_s: float = TIMEOUT_S
) -> Callable[[CheckFunction], Check]:
    """Decorator that makes a check of a function."""

    def make(function: CheckFunction) -> Check:
        return Check(name, meaning, remedy, function, timeout_s)

    return make
