"""Dashboard sessions, stored in Redis until they expire.

The browser holds a random cookie and Redis only its SHA-256 digest, so neither the cookie nor the
API key can be recovered from the stored record.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.access import AccessKeys, SessionField
from sluice.common.jobs.store import read_reply
from sluice.gateway.auth.batched_lookup import BatchedLookup

#: Lifetime of a session in seconds; after that the user signs in again.
SESSION_TTL_S: Final = 8 * 3600
#: Maximum number of sessions per key. A new one beyond it ends the session that expires first.
MAX_SESSIONS_PER_KEY: Final = 100
#: Seconds for which a session record is cached, as for keys.
CACHE_TTL_S: Final = 1.0
MAX_CACHED_SESSIONS: Final = 4096
#: Most sign-ins at a time, from the headers to the answer. No key is known while one is read.
MAX_SIGN_INS: Final = 32
_COOKIE = re.compile(r"\A[A-Za-z0-9_-]{43}\Z")
_DIGEST = re.compile(r"\A[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Session:
    """The stored record of a signed-in browser."""

    #: SHA-256 of the cookie, as hex; part of the Redis key.
    digest: str
    key_id: str
    key_digest: str
    #: False for a read-only session.
    actions: bool
    expires_ms: int

    @classmethod
    def from_json(cls, digest: str, raw: bytes) -> Session | None:
        """Parse a stored record; None if it is invalid."""
        try:
            stored: dict[str, Any] = codec.loads(raw)
            found = cls(
                digest,
                stored[SessionField.KEY_ID],
                stored[SessionField.KEY_SHA256],
                stored[SessionField.ACTIONS] is True,
                int(stored[SessionField.EXPIRES_MS]),
            )
        except (ValueError, TypeError, KeyError, ArithmeticError):
            return None
        valid = isinstance(found.key_id, str) and isinstance(found.key_digest, str)
        return found if valid and _DIGEST.match(found.key_digest) else None

    def to_json(self) -> bytes:
        values: dict[str, object] = {
            SessionField.KEY_ID: self.key_id,
            SessionField.KEY_SHA256: self.key_digest,
            SessionField.ACTIONS: self.actions,
            SessionField.EXPIRES_MS: self.expires_ms,
        }
        return codec.dumps(dict(values.items()))


class NewSession(NamedTuple):
    """A new session and its cookie. Only the browser keeps the cookie."""

    session: Session
    cookie: str


class _CachedSession(NamedTuple):
    session: Session | None
    at: float


class SessionStore:
    """Creates, looks up and ends sessions in Redis."""

    def __init__(
        self,
        client: Redis,
        keys: AccessKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._keys = keys or AccessKeys()
        self._clock = clock
        self._cache: dict[str, _CachedSession] = {}
        self._lookup = BatchedLookup(self._find)
        #: Requests to sign in that are not answered yet.
        self.sign_ins = 0

    async def begin(self, key_id: str, key_digest: str, *, actions: bool) -> NewSession:
        """Create a session for an authenticated key."""
        cookie = secrets.token_urlsafe(32)
        now_ms = _now_ms()
        session = Session(
            _digest(cookie), key_id, key_digest, actions, now_ms + SESSION_TTL_S * 1000
        )
        keys = self._keys
        others = keys.sessions(key_id)
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.set(keys.session(session.digest), session.to_json(), ex=SESSION_TTL_S)
            pipe.zremrangebyscore(others, "-inf", now_ms)
            pipe.zadd(others, {session.digest: session.expires_ms})
            pipe.expire(others, SESSION_TTL_S)
            pipe.zrange(others, 0, -MAX_SESSIONS_PER_KEY - 1)
            *_, surplus = await read_reply(pipe.execute())
        for digest in surplus:
            await self.end(Session(codec.decode_text(digest), key_id, "", False, 0))
        return NewSession(session, cookie)

    async def by_cookie(self, cookie: str) -> Session | None:
        """The session of a cookie; None if it is unknown or expired."""
        return await self.by_digest(_digest(cookie)) if _COOKIE.match(cookie) else None

    async def by_digest(self, digest: str) -> Session | None:
        cached = self._cache.get(digest)
        if cached is None or self._clock() - cached.at >= CACHE_TTL_S:
            cached = await self._lookup.get(digest)
        session = cached.session
        return None if session is None or session.expires_ms <= _now_ms() else session

    async def end(self, session: Session) -> None:
        """Delete a session; its cookie is invalid from now on."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.delete(self._keys.session(session.digest))
            pipe.zrem(self._keys.sessions(session.key_id), session.digest)
            await read_reply(pipe.execute())
        self._cache.pop(session.digest, None)

    async def close(self) -> None:
        await self._lookup.close()

    async def _find(self, digests: list[str]) -> list[_CachedSession]:
        read_at = self._clock()
        names = [self._keys.session(digest) for digest in digests]
        command: Any = self._client.mget(names)
        found = []
        for digest, raw in zip(digests, await read_reply(command)):
            cached = _CachedSession(
                None if raw is None else Session.from_json(digest, raw), read_at
            )
            self._cache.pop(digest, None)
            self._cache[digest] = cached
            found.append(cached)
        while len(self._cache) > MAX_CACHED_SESSIONS:
            del self._cache[next(iter(self._cache))]
        return found


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def _now_ms() -> int:
    return int(time.time() * 1000)
