"""The types of checks and findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.ops.doctor.machine import Machine

#: Default timeout of a check in seconds.
TIMEOUT_S = 10.0


class Health(str, Enum):
    """The status of a finding."""

    OK = "ok"
    #: Information; no action needed.
    NOTE = "note"
    #: Works, but may cause problems later.
    WARN = "warn"
    #: Does not work, or may lose jobs.
    FAIL = "fail"
    #: Not applicable here, or could not be checked.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    status: Health
    #: The observed state.
    seen: str
    #: The cause, or why it matters.
    cause: str = ""
    #: The remedy, as a command if possible.
    fix: str = ""
    #: The name of the check; set by the runner.
    check: str = ""


class CheckSkipped(Exception):
    """Raised by a check that cannot run here; the message gives the reason."""


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
    """Decorator that turns a function into a check."""

    def make(function: CheckFunction) -> Check:
        return Check(name, meaning, remedy, function, timeout_s)

    return make
