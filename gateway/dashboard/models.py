"""What a page and the gateway tell each other about a session."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from common.contracts.access import Scope
from common.version import VERSION
from gateway.auth.callers import Caller


class DashboardAction(str, Enum):
    """What pages have buttons for."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    DECIDE = "decide"
    REDRIVE = "redrive"
    ADMIN = "admin"


class DashboardArea(str, Enum):
    """What pages show."""

    JOBS = "jobs"
    NUMBERS = "numbers"
    #: What is of no tenant: dead letters, the trail, audits.
    ALL = "all"
    KEYS = "keys"


def allowed_actions(caller: Caller) -> list[DashboardAction]:
    """What it may do, if its session may do anything."""
    allowed = {
        DashboardAction.SUBMIT: caller.may(Scope.JOBS_WRITE),
        DashboardAction.CANCEL: caller.may(Scope.JOBS_WRITE),
        DashboardAction.DECIDE: caller.may(Scope.JOBS_WRITE) and caller.may(Scope.JOBS_READ),
        DashboardAction.REDRIVE: caller.may(Scope.ADMIN),
        DashboardAction.ADMIN: caller.may(Scope.ADMIN),
    }
    return [deed for deed, may in allowed.items() if may]


def readable_areas(caller: Caller) -> list[DashboardArea]:
    admin, ui = caller.may(Scope.ADMIN), caller.may(Scope.UI)
    allowed = {
        DashboardArea.JOBS: ui or caller.may(Scope.JOBS_READ),
        DashboardArea.NUMBERS: ui or caller.may(Scope.METRICS),
        DashboardArea.ALL: admin or (ui and caller.sees_all),
        DashboardArea.KEYS: admin,
    }
    return [sight for sight, may in allowed.items() if may]


class SignInRequest(BaseModel):
    """Who wants a session."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[SecretStr, Field(strict=True, min_length=1, max_length=200)] = Field(
        description="An API key with the scope `ui`, or `admin`."
    )
    actions: Annotated[bool, Field(strict=True)] = Field(
        False, description="Whether it may change something, as far as the key may."
    )


class SessionView(BaseModel):
    """Whom the gateway takes a page for, and what that page may do and show."""

    sign_in_needed: bool = Field(description="Nobody is signed in, and a key is needed.")
    signed_in: bool = Field(description="There is a session that can be left.")
    actions: bool = Field(description="Whether it may change anything.")
    key_id: str | None
    name: str
    tenant: str | None
    scopes: list[Scope]
    may: list[DashboardAction]
    reads: list[DashboardArea]
    expires_ts: int | None = Field(description="When the session ends, in Unix milliseconds.")
    version: str = VERSION

    @classmethod
    def of(cls, caller: Caller, *, actions: bool, expires_ms: int | None) -> SessionView:
        """As the guard knows the caller; nobody has no scopes."""
        return cls(
            sign_in_needed=not caller.scopes,
            signed_in=expires_ms is not None,
            actions=actions,
            key_id=caller.key_id or None,
            name=caller.name if caller.scopes else "",
            tenant=caller.tenant or None,
            scopes=[scope for scope in Scope if scope.value in caller.scopes],
            may=allowed_actions(caller) if actions else [],
            reads=readable_areas(caller),
            expires_ts=expires_ms,
        )
