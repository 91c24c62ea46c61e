"""The guard: nobody gets past who may not, and no body is read before it is known whose it is.

A key is needed beyond loopback, or always (`AUTH=required`). Who comes without one from the
machine itself is its operator and may do everything; a key that is shown there counts as well.
Only what OpenAI's SDKs show because they must show something is no key, there and on their paths.
"""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from common import logs
from common.contracts.access import KEY_PREFIX
from common.errors import SettingsError, StoreUnavailable
from common.network import is_loopback
from common.settings import GatewaySettings
from gateway.callers import LOCAL, NOBODY, SCOPE_KEY, Caller, Callers
from gateway.openai.paths import is_openai
from gateway.permissions import Permission, permission_for
from gateway.problems import Problem, unavailable

_REALM = 'Bearer realm="sluice"'
_BEARER = b"bearer "
_PREFIX = KEY_PREFIX.encode()


def keys_required(settings: GatewaySettings, *, beyond_loopback: bool = False) -> bool:
    """Whether every request needs a key. `beyond_loopback`: a socket that we were given is."""
    beyond = beyond_loopback or not is_loopback(settings.host)
    if settings.auth == "off" and beyond:
        where = "the socket handed over" if beyond_loopback else f"HOST={settings.host}"
        raise SettingsError(
            f"AUTH=off, but {where} can be reached from other machines; set AUTH=auto and make a "
            "key with `sluice key create`, or listen on 127.0.0.1 only"
        )
    return settings.auth == "required" or (settings.auth == "auto" and beyond)


class Guard:
    """Pure ASGI, inside the edge, which turns what it raises into answers."""

    def __init__(self, app: ASGIApp, required: bool) -> None:
        self._app = app
        self._required = required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request pass, with its caller, or raise the Problem that keeps it out."""
        if scope["type"] == "http":
            shown = [value for name, value in scope["headers"] if name == b"authorization"]
            if self._required or not _is_local(scope) or (shown and not _is_filler(scope, shown)):
                scope[SCOPE_KEY] = await self._let_in(scope, shown)
            else:
                scope[SCOPE_KEY] = LOCAL
        elif scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    async def _let_in(self, scope: Scope, shown: list[bytes]) -> Caller:
        permission = permission_for(scope["method"], scope["path"])
        if permission.public:
            return NOBODY
        if not shown:
            raise _no_key()
        callers: Callers = scope["app"].state.gateway.access.callers
        try:
            caller = await callers.identify(_key_in(shown))
        except StoreUnavailable as error:  # nobody knows, so nobody gets in
            raise unavailable(str(error)) from None
        if caller is None:
            raise bad_key("The API key is not valid: mistyped, expired or revoked.")
        if not permission.lets(caller.scopes):
            raise _not_allowed(permission)
        logs.tenant.set(caller.tenant)
        return caller


def _is_local(scope: Scope) -> bool:
    """Whether the connection's own end is on loopback, or a unix socket."""
    server: Any = scope.get("server")
    if server is None:
        return False  # who knows
    host, port = server
    return port is None or is_loopback(host)


def _is_filler(scope: Scope, shown: list[bytes]) -> bool:
    """Whether it is what an OpenAI SDK sends because it must send some key: none of ours.

    Asked only where nobody needs a key, so that who is let in by it could have left it out.
    """
    if len(shown) > 1 or not is_openai(scope["path"]):
        return False
    [value] = shown
    head, key = value[: len(_BEARER)].lower(), value[len(_BEARER) :].strip(b" ").lower()
    return head.rstrip(b" ") == _BEARER.rstrip(b" ") and not key.startswith(_PREFIX)


def _key_in(shown: list[bytes]) -> str:
    if len(shown) > 1:
        raise bad_key("There is more than one Authorization header; send one.")
    [value] = shown
    if value[: len(_BEARER)].lower() != _BEARER:
        raise bad_key("Send the API key as `Authorization: Bearer sluice_…`.")
    return value[len(_BEARER) :].strip(b" ").decode("latin-1")


def _no_key() -> Problem:
    return Problem(
        401,
        "key_required",
        "This gateway wants an API key: `Authorization: Bearer sluice_…`. Its operator makes one "
        "with `sluice key create`.",
        headers={"WWW-Authenticate": _REALM},
    )


def bad_key(detail: str) -> Problem:
    """There is a key, and nobody gets in by it."""
    challenge = f'{_REALM}, error="invalid_token"'
    return Problem(401, "invalid_key", detail, headers={"WWW-Authenticate": challenge})


def _not_allowed(permission: Permission) -> Problem:
    wanted = " ".join(sorted(permission.scopes))
    which = "All" if permission.needs_all else "One"
    challenge = f'{_REALM}, error="insufficient_scope", scope="{wanted}"'
    return Problem(
        403,
        "insufficient_scope",
        f"This API key may not do that. {which} of these scopes is needed: {wanted}.",
        headers={"WWW-Authenticate": challenge},
    )
