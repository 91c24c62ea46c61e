"""What a page and the gateway tell each other about a session."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from common.contracts.access import Scope
from common.version import VERSION
from gateway.callers import Caller
from gateway.dashboard.rights import Deed, Sight, deeds, sights


class SignIn(BaseModel):
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
    may: list[Deed]
    reads: list[Sight]
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
            may=deeds(caller) if actions else [],
            reads=sights(caller),
            expires_ts=expires_ms,
        )
