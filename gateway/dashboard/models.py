"""Request and response models of the dashboard session endpoints."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from sluice.common.contracts.access import Scope
from sluice.common.version import VERSION
from sluice.gateway.auth.callers import Caller


class DashboardAction(str, Enum):
    """Actions that the dashboard offers buttons for."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    DECIDE = "decide"
    REDRIVE = "redrive"
    ADMIN = "admin"


class DashboardArea(str, Enum):
    """Kinds of data that the dashboard can show."""

    JOBS = "jobs"
    NUMBERS = "numbers"
    #: Data that belongs to no tenant: dead letters, the audit log, integrity checks.
    ALL = "all"
    KEYS = "keys"


def allowed_actions(caller: Caller) -> list[DashboardAction]:
    """Actions that the caller's scopes permit; the session may still be read-only."""
    allowed = {
        DashboardAction.SUBMIT: caller.may(Scope.JOBS_WRITE),
        DashboardAction.CANCEL: caller.may(Scope.JOBS_WRITE),
        DashboardAction.DECIDE: caller.may(Scope.JOBS_WRITE) and caller.may(Scope.JOBS_READ),
        DashboardAction.REDRIVE: caller.may(Scope.ADMIN),
        DashboardAction.ADMIN: caller.may(Scope.ADMIN),
    }
    return [action for action, may in allowed.items() if may]


def readable_areas(caller: Caller) -> list[DashboardArea]:
    admin, ui = caller.may(Scope.ADMIN), caller.may(Scope.UI)
    allowed = {
        DashboardArea.JOBS: ui or caller.may(Scope.JOBS_READ),
        DashboardArea.NUMBERS: ui or caller.may(Scope.METRICS),
        DashboardArea.ALL: admin or (ui and caller.sees_all),
        DashboardArea.KEYS: admin,
    }
    return [area for area, may in allowed.items() if may]


class SignInRequest(BaseModel):
    """Body of a sign-in request."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[SecretStr, Field(strict=True, min_length=1, max_length=200)] = Field(
        description="An API key with the scope `ui` or `admin`."
    )
    actions: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="Allow actions in this session, within the key's scopes. If false, the "
        "session is read-only.",
    )


class SessionView(BaseModel):
    """The current session: the caller, and what its pages may do and show."""

    sign_in_needed: bool = Field(description="A key is required, and the browser is not signed in.")
    signed_in: bool = Field(description="The browser is signed in and can sign out.")
    actions: bool = Field(description="Actions are allowed. If false, the session is read-only.")
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
        """Build the view of an authenticated caller; an anonymous caller has no scopes."""
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
