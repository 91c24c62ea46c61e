"""Authentication and authorisation. Runs before the request body is read.

- API keys are required when the gateway listens beyond loopback, or always (`AUTH=required`).
- A local request without a key is the operator's and has all scopes. A key that is sent anyway is
  checked. The exception: on the OpenAI paths, a bearer token that is not a Sluice key is ignored,
  because OpenAI SDKs always send one.
- A local request without a key that a proxy has forwarded needs a key, unless the settings announce
  the proxy: its client may be anywhere.
- With IMAGE_UPLOAD_SECRET, an image upload is authenticated by its upload token instead of a key.
- On the routes of one job or workflow job, a read token is checked before anything else.
- A dashboard session has the permissions of the key it was created with. An expired session is
  ignored.
"""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.common.contracts.access import KEY_PREFIX
from sluice.common.errors import SettingsError, StoreUnavailable
from sluice.common.observability import logs
from sluice.common.process.host import is_loopback
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.auth.access import Access
from sluice.gateway.auth.callers import ANONYMOUS, LOCAL, SCOPE_KEY, Caller, Callers
from sluice.gateway.auth.permissions import TOKENS, Permission, permission_for
from sluice.gateway.auth.read_tokens import (
    ReadTarget,
    invalid_token,
    read_target,
    take_token,
    without_caching,
)
from sluice.gateway.dashboard import request_checks
from sluice.gateway.dashboard.sessions import Session
from sluice.gateway.features.images.upload import tokens
from sluice.gateway.features.images.upload.tokens import UploadTokens
from sluice.gateway.http.paths import DASHBOARD_SESSION, is_image_upload, is_openai
from sluice.gateway.http.problems import Problem, store_unavailable

_REALM = 'Bearer realm="sluice"'
_BEARER = b"bearer "
_PREFIX = KEY_PREFIX.encode()


def keys_required(settings: GatewaySettings, *, beyond_loopback: bool = False) -> bool:
    """True if every request needs a key.

    `beyond_loopback`: an inherited socket accepts connections from other machines.
    """
    reachable = beyond_loopback or not is_loopback(settings.host)
    if settings.auth == "off" and reachable:
        where = "the inherited socket" if beyond_loopback else f"HOST={settings.host}"
        raise SettingsError(
            f"AUTH=off, but {where} can be reached from other machines; set AUTH=auto and create a "
            "key with `sluice key create`, or listen on 127.0.0.1 only"
        )
    return settings.auth == "required" or (settings.auth == "auto" and reachable)


class AuthMiddleware:
    """Pure ASGI middleware. `RequestMiddleware` turns its Problems into responses."""

    def __init__(
        self,
        app: ASGIApp,
        required: bool,
        upload_tokens: UploadTokens | None = None,
        dashboard: str = "on",
        expects_proxy: bool = False,
    ) -> None:
        """`expects_proxy`: a request that a proxy has forwarded may be the local operator's."""
        self._app = app
        self._required = required
        self._expects_proxy = expects_proxy
        self._upload_tokens = upload_tokens
        self._dashboard = dashboard != "off"
        self._read_only = dashboard == "read-only"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the caller in the scope and pass the request on, or raise a Problem."""
        if scope["type"] == "http":
            shown = request_checks.credentials_in(scope["headers"])
            session = None
            if self._upload_tokens is not None and is_image_upload(scope["method"], scope["path"]):
                scope[SCOPE_KEY] = await self._authenticate_upload(scope, self._upload_tokens)
            elif (target := read_target(scope["method"], scope["path"])) and (
                token := take_token(scope, shown.keys)
            ) is not None:
                scope[SCOPE_KEY] = await self._authenticate_token(scope, token, target)
                send = without_caching(send)
            elif shown.cookie and not shown.keys and (signed := await self._session(scope, shown)):
                scope[SCOPE_KEY], session = signed
            elif self._required or not _is_local(scope) or not _has_no_key(scope, shown.keys):
                scope[SCOPE_KEY] = await self._authenticate(scope, shown.keys)
            elif shown.proxy_header and not self._expects_proxy:
                scope[SCOPE_KEY] = _forwarded(scope, shown.proxy_header)
            else:
                scope[SCOPE_KEY] = LOCAL
            if self._dashboard and (
                session or shown.from_dashboard or scope["path"] == DASHBOARD_SESSION
            ):
                access: Access = scope["app"].state.gateway.access
                await request_checks.check_allowed(
                    scope, shown, session, access, read_only=self._read_only
                )
        elif scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    async def _session(
        self, scope: Scope, shown: request_checks.Credentials
    ) -> tuple[Caller, Session] | None:
        """The caller of a dashboard session, for requests from the dashboard; None without one."""
        permission = permission_for(scope["method"], scope["path"])
        if not self._dashboard or (permission.public and scope["path"] != DASHBOARD_SESSION):
            return None
        if not request_checks.is_same_origin_fetch(scope):
            return None  # sent by another site, for example on another port of this host
        access: Access = scope["app"].state.gateway.access
        try:
            session = await access.sessions.by_cookie(shown.cookie)
            caller = None if session is None else await access.callers.by_session(session)
        except StoreUnavailable as error:
            raise store_unavailable(str(error)) from None
        if session is None or caller is None:
            return None
        if not permission.allows(caller.scopes, sees_all=caller.sees_all):
            raise _insufficient_scope(permission)
        logs.tenant.set(caller.tenant)
        scope[request_checks.SCOPE_KEY] = session
        return caller, session

    async def _authenticate_upload(self, scope: Scope, upload_tokens: UploadTokens) -> Caller:
        """The caller that created the image; the upload token names its key."""
        signed = upload_tokens.check(scope["headers"], scope["path"])
        if not signed.key_id:
            return LOCAL
        callers: Callers = scope["app"].state.gateway.access.callers
        try:
            caller = await callers.by_key_id(signed.key_id)
        except StoreUnavailable as error:
            raise store_unavailable(str(error)) from None
        if caller is None:
            raise tokens.key_revoked()
        logs.tenant.set(caller.tenant)
        return caller

    async def _authenticate_token(self, scope: Scope, token: str, target: ReadTarget) -> Caller:
        """The caller that created the read token, with no more permission than the token has."""
        access: Access = scope["app"].state.gateway.access
        try:
            claims = await access.read_tokens.check(token, target)
            creator = LOCAL if not claims.key_id else await access.callers.by_key_id(claims.key_id)
        except StoreUnavailable as error:
            raise store_unavailable(str(error)) from None
        if creator is None:
            raise invalid_token("The API key behind this token was revoked or has expired.")
        if not claims.key_id and (self._required or not _is_local(scope)):
            raise invalid_token("The token was created without an API key, which is required now.")
        if not TOKENS.allows(creator.scopes):
            raise _insufficient_scope(TOKENS)
        logs.tenant.set(creator.tenant)
        return creator.with_token(claims.expires_s)

    async def _authenticate(self, scope: Scope, shown: list[bytes]) -> Caller:
        permission = permission_for(scope["method"], scope["path"])
        if permission.public:
            return ANONYMOUS
        if not shown:
            raise _key_required()
        callers: Callers = scope["app"].state.gateway.access.callers
        try:
            caller = await callers.identify(_bearer_key(shown))
        except StoreUnavailable as error:  # authentication fails closed
            raise store_unavailable(str(error)) from None
        if caller is None:
            raise invalid_key("The API key is not valid: mistyped, expired or revoked.")
        if not permission.allows(caller.scopes, sees_all=caller.sees_all):
            raise _insufficient_scope(permission)
        logs.tenant.set(caller.tenant)
        return caller


def _is_local(scope: Scope) -> bool:
    """True if the connection was accepted on loopback or on a Unix socket."""
    server: Any = scope.get("server")
    if server is None:
        return False  # unknown
    host, port = server
    return port is None or is_loopback(host)


def _has_no_key(scope: Scope, shown: list[bytes]) -> bool:
    """True without an Authorization header, or with a placeholder token of an OpenAI SDK.

    Called only where no key is required, so the same request would be accepted without the token.
    """
    if not shown:
        return True
    if len(shown) > 1 or not is_openai(scope["path"]):
        return False
    [value] = shown
    head, key = value[: len(_BEARER)].lower(), value[len(_BEARER) :].strip(b" ").lower()
    return head.rstrip(b" ") == _BEARER.rstrip(b" ") and not key.startswith(_PREFIX)


def _bearer_key(shown: list[bytes]) -> str:
    if len(shown) > 1:
        raise invalid_key("The request has more than one Authorization header; send one.")
    [value] = shown
    if value[: len(_BEARER)].lower() != _BEARER:
        raise invalid_key("Send the API key as `Authorization: Bearer sluice_…`.")
    return value[len(_BEARER) :].strip(b" ").decode("latin-1")


def _key_required() -> Problem:
    return Problem(
        401,
        "key_required",
        "API key required: send `Authorization: Bearer sluice_…`. The operator creates keys with "
        "`sluice key create`.",
        headers={"WWW-Authenticate": _REALM},
    )


def _forwarded(scope: Scope, header: str) -> Caller:
    """The caller of a forwarded request without a key, whose client may be anywhere."""
    if permission_for(scope["method"], scope["path"]).public:
        return ANONYMOUS
    raise Problem(
        401,
        "key_required",
        f"API key required: the request has the header {header.title()}, so a proxy has forwarded "
        "it, and it does not count as the local operator's. Send `Authorization: Bearer sluice_…`. "
        "If the proxy itself authenticates its clients, name its address in FORWARDED_ALLOW_IPS.",
        headers={"WWW-Authenticate": _REALM},
    )


def invalid_key(detail: str) -> Problem:
    """A 401 for a key that was sent but is not accepted."""
    challenge = f'{_REALM}, error="invalid_token"'
    return Problem(401, "invalid_key", detail, headers={"WWW-Authenticate": challenge})


def _insufficient_scope(permission: Permission) -> Problem:
    scopes = " ".join(sorted(permission.scopes))
    which = "All of these scopes are" if permission.needs_all else "One of these scopes is"
    challenge = f'{_REALM}, error="insufficient_scope", scope="{scopes}"'
    return Problem(
        403,
        "insufficient_scope",
        f"This API key lacks the permission. {which} needed: {scopes}.",
        headers={"WWW-Authenticate": challenge},
    )
