"""Read tokens: each permits a web page to read one job or workflow job for a limited time.

They are for `EventSource`, which cannot send headers, and for pages that must not hold an API key.
A token is signed, not stored, and acts for the key that created it: revoking the key ends its
tokens and their streams.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from starlette.types import Message, Scope, Send

from sluice.common.access.store import KeyStore
from sluice.gateway.auth.batched_lookup import BatchedLookup
from sluice.gateway.auth.signature import SIGNATURE, Signer
from sluice.gateway.http.headers import READ_TOKEN_PARAM
from sluice.gateway.http.paths import (
    WORKFLOW_EVENTS,
    WORKFLOW_JOB,
    WORKFLOW_STATUS,
    WORKFLOW_STREAM,
)
from sluice.gateway.http.problems import Problem
from sluice.gateway.http.security import CACHING, NO_STORE

DEFAULT_TTL_S: Final = 600
LONGEST_TTL_S: Final = 3600
#: Seconds for which the secret is cached.
SECRET_TTL_S: Final = 1.0
_VERSION: Final = "rd1"
_PREFIX: Final = f"{_VERSION}~".encode()
#: Version, kind and id of the target, expiry in Unix seconds, key (may be empty), signature.
_TOKEN: Final = re.compile(
    _VERSION
    + "~((?:job|workflow)~[0-9A-Za-z._-]{1,128})~([0-9]{1,12})~([0-9a-z]{0,64})~"
    + SIGNATURE
)
_QUERY_PREFIX: Final = f"{READ_TOKEN_PARAM}=".encode()
_BEARER: Final = b"bearer "
_REALM: Final = 'Bearer realm="sluice", error="invalid_token"'


class ReadTarget(NamedTuple):
    """What a token permits to read."""

    kind: str
    id: str

    @classmethod
    def job(cls, job_id: str) -> ReadTarget:
        return cls("job", job_id)

    @classmethod
    def workflow(cls, job_id: str) -> ReadTarget:
        return cls("workflow", job_id)


#: Targets by the prefix of their paths, and what may follow the id.
_ROUTES: Final[tuple[tuple[str, Callable[[str], ReadTarget], frozenset[str]], ...]] = (
    ("/v1/jobs/", ReadTarget.job, frozenset(("", "/events"))),
    (
        WORKFLOW_JOB.partition("{")[0],
        ReadTarget.workflow,
        frozenset(
            path.rpartition("}")[2] for path in (WORKFLOW_STATUS, WORKFLOW_EVENTS, WORKFLOW_STREAM)
        ),
    ),
)


def read_target(method: str, path: str) -> ReadTarget | None:
    """What a request reads; None if read tokens do not permit it."""
    if method != "GET":
        return None
    for prefix, target, suffixes in _ROUTES:
        if path.startswith(prefix):
            name, slash, rest = path[len(prefix) :].partition("/")
            return target(name) if slash + rest in suffixes else None
    return None


class ReadClaims(NamedTuple):
    """The content of a token."""

    target: ReadTarget
    expires_s: int
    #: Id of the API key that created the token; '' for a local caller without a key.
    key_id: str


class ReadTokens:
    """Issues and checks tokens, with the secret that all gateways share in Redis."""

    def __init__(self, store: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._signer: Signer | None = None
        self._read_at = 0.0
        self._lookup = BatchedLookup(self._find)

    async def issue(self, claims: ReadClaims) -> str:
        """The token of these claims. Raises StoreUnavailable."""
        signer = await self._current() or _signer(await self._store.create_token_secret())
        content = f"{_VERSION}~{'~'.join(claims.target)}~{claims.expires_s}~{claims.key_id}"
        return f"{content}~{signer.sign(content)}"

    async def check(self, token: str, target: ReadTarget) -> ReadClaims:
        """The claims of a token for a target; raises the problem of an invalid one.

        Raises StoreUnavailable if Redis does not answer.
        """
        found = _TOKEN.fullmatch(token)
        if found is None:
            raise invalid_token("The token is not valid.")
        signer = await self._current()
        if signer is None or not signer.is_signed(token.rpartition("~")[0], found[4]):
            raise invalid_token("The token is not valid.")
        kind, _, name = found[1].partition("~")
        claims = ReadClaims(ReadTarget(kind, name), int(found[2]), found[3])
        if claims.target != target:
            raise Problem(403, "token_mismatch", "This token is for another job.")
        if claims.expires_s <= time.time():
            raise _refused("token_expired", "The token has expired; create another one.")
        return claims

    async def close(self) -> None:
        await self._lookup.close()

    async def _current(self) -> Signer | None:
        """The signer of the stored secret; None if no gateway has created one."""
        if self._signer is None or self._clock() - self._read_at >= SECRET_TTL_S:
            self._signer = await self._lookup.get(self._store.keys.token_secret)
        return self._signer

    async def _find(self, names: list[str]) -> list[Signer | None]:
        self._read_at = self._clock()
        secret = await self._store.token_secret()
        return [None if secret is None else _signer(secret) for _ in names]


def take_token(scope: Scope, authorization: Sequence[bytes]) -> str | None:
    """The token of a request; None without one.

    It is removed from the query string, so that nothing behind can log or repeat it.
    """
    query: bytes = scope["query_string"]
    found: list[str] = []
    if _QUERY_PREFIX in query:
        parts = query.split(b"&")
        found = [
            unquote(part[len(_QUERY_PREFIX) :].decode("latin-1"))
            for part in parts
            if part.startswith(_QUERY_PREFIX)
        ]
        scope["query_string"] = b"&".join(
            part for part in parts if not part.startswith(_QUERY_PREFIX)
        )
    if found and (len(found) > 1 or authorization):
        raise invalid_token("There is more than one token or key; send one.")
    if not found and len(authorization) == 1:
        [value] = authorization
        shown = value[len(_BEARER) :].strip(b" ")
        if value[: len(_BEARER)].lower() == _BEARER and shown.startswith(_PREFIX):
            return shown.decode("latin-1")
    return found[0] if found else None


def without_caching(send: Send) -> Send:
    """Marks a response as not to be stored, because its URL may contain a token."""

    async def send_uncached(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [
                (name, value)
                for name, value in message["headers"]
                if name != CACHING or NO_STORE[1] in value
            ]
            if not any(name == CACHING for name, _ in kept):
                kept.append(NO_STORE)
            message = {**message, "headers": kept}
        await send(message)

    return send_uncached


def invalid_token(detail: str) -> Problem:
    """A 401 for a token that is not accepted."""
    return _refused("invalid_token", detail)


def _refused(code: str, detail: str) -> Problem:
    return Problem(401, code, detail, headers={"WWW-Authenticate": _REALM})


def _signer(secret: bytes) -> Signer:
    return Signer("read token", secret)
