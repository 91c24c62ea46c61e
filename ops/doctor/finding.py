"""What a check found, and what a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.doctor.box import Box

#: Seconds after which a check is given up, unless it says otherwise.
LIMIT_S = 10.0


class Health(str, Enum):
    """How it stands with what a check looked at."""

    OK = "ok"
    #: Worth knowing; nothing needs to be done.
    NOTE = "note"
    #: Works, and will hurt some day.
    WARN = "warn"
    #: Does not work, or loses jobs.
    FAIL = "fail"
    #: Could not be looked at, or there is nothing of the kind here.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    status: Health
    #: What was seen.
    seen: str
    #: Why that matters, or how it comes about.
    cause: str = ""
    #: What to do, as a command wherever one does it.
    fix: str = ""
    #: The name of the check; filled in by the examination.
    check: str = ""


class Unable(Exception):
    """Raised by a check that cannot look; the message says why."""


def ok(seen: str) -> Finding:
    """All is well."""
    return Finding(Health.OK, seen)


def note(seen: str, cause: str = "", fix: str = "") -> Finding:
    """Worth knowing."""
    return Finding(Health.NOTE, seen, cause, fix)


def warn(seen: str, cause: str, fix: str) -> Finding:
    """Will hurt some day."""
    return Finding(Health.WARN, seen, cause, fix)


def fail(seen: str, cause: str, fix: str) -> Finding:
    """Does not work, or loses jobs."""
    return Finding(Health.FAIL, seen, cause, fix)


Look = Callable[["Box"], "Finding | list[Finding]"]


@dataclass(frozen=True, slots=True)
class Check:
    """Something the doctor looks at. `meaning` and `remedy` are rows of docs/doctor.md."""

    name: str
    meaning: str
    remedy: str
    look: Look
    limit_s: float = LIMIT_S

    @property
    def family(self) -> str:
        """What comes before the dot."""
        return self.name.partition(".")[0]


def check(
    name: str, meaning: str, remedy: str, limit_s: float = LIMIT_S
) -> Callable[[Look], Check]:
    """Make a check of a function."""

    def make(look: Look) -> Check:
        return Check(name, meaning, remedy, look, limit_s)

    return make
