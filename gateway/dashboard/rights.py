"""What a page may do and read for whom: so that it shows no button that would be refused."""

from __future__ import annotations

from enum import Enum

from common.contracts.access import Scope
from gateway.callers import Caller


class Deed(str, Enum):
    """What pages have buttons for."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    DECIDE = "decide"
    REDRIVE = "redrive"
    ADMIN = "admin"


class Sight(str, Enum):
    """What pages show."""

    JOBS = "jobs"
    NUMBERS = "numbers"
    #: What is of no tenant: dead letters, the trail, audits.
    ALL = "all"
    KEYS = "keys"


def deeds(caller: Caller) -> list[Deed]:
    """What it may do, if its session may do anything."""
    allowed = {
        Deed.SUBMIT: caller.may(Scope.JOBS_WRITE),
        Deed.CANCEL: caller.may(Scope.JOBS_WRITE),
        Deed.DECIDE: caller.may(Scope.JOBS_WRITE) and caller.may(Scope.JOBS_READ),
        Deed.REDRIVE: caller.may(Scope.ADMIN),
        Deed.ADMIN: caller.may(Scope.ADMIN),
    }
    return [deed for deed, may in allowed.items() if may]


def sights(caller: Caller) -> list[Sight]:
    """What it may see."""
    admin, ui = caller.may(Scope.ADMIN), caller.may(Scope.UI)
    allowed = {
        Sight.JOBS: ui or caller.may(Scope.JOBS_READ),
        Sight.NUMBERS: ui or caller.may(Scope.METRICS),
        Sight.ALL: admin or (ui and caller.sees_all),
        Sight.KEYS: admin,
    }
    return [sight for sight, may in allowed.items() if may]
