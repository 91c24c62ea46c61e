"""Authentication of API keys. Each key is read from Redis at most once a second."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from starlette.requests import Request

from sluice.common.access.key_format import KEY_ID_SLICE, PresentedKey, parse_key
from sluice.common.access.record import AccessRecord, is_valid_secret, tenant_tail
from sluice.common.access.store import KeyStore
from sluice.common.aio import cancel
from sluice.common.contracts.access import AccessKeys, Scope
from sluice.common.errors import SluiceError
from sluice.common.jobs.limits import KeyLimits
from sluice.gateway.auth.batched_lookup import BatchedLookup
from sluice.gateway.dashboard.sessions import Session, SessionStore

log = logging.getLogger(__name__)

#: Seconds for which a key record is cached; a revoked key stops working within this time.
CACHE_TTL_S = 1.0
#: Minimum seconds between two writes of a key's last use.
NOTE_USE_S = 60.0
#: Maximum number of cached keys.
MAX_CACHED_KEYS = 4096
#: ASGI scope key under which the auth middleware stores the caller for the routes.
SCOPE_KEY = "sluice.caller"
_ALL_SCOPES = frozenset(scope.value for scope in Scope)
_TOKEN_SCOPES = frozenset((Scope.JOBS_READ.value,))


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated principal: key id, tenant, scopes and limits."""

    key_id: str
    name: str
    scopes: frozenset[str]
    tenant: str = ""
    #: Suffix of the job ids of its tenant; '' without a tenant.
    tail: str = ""
    #: True if it may access the jobs of all tenants.
    sees_all: bool = False
    tasks: frozenset[str] | None = None
    #: Tools that its jobs may use; None for any.
    tools: frozenset[str] | None = None
    limits: KeyLimits | None = None
    record: AccessRecord | None = field(default=None, repr=False)
    digest: str = field(default="", repr=False)
    #: Digest of the dashboard session it signed in with; '' without one.
    session: str = field(default="", repr=False)
    #: When the read token of the request expires, in Unix seconds; 0 without one.
    token_expires_s: int = 0

    @property
    def who(self) -> str:
        return self.key_id or self.name

    def owns(self, job_id: str) -> bool:
        """True if the job belongs to the caller's tenant."""
        return bool(self.tail) and job_id.endswith(self.tail)

    def may_see(self, job_id: str) -> bool:
        """True if the caller may access the job; otherwise the job is reported as missing."""
        return self.sees_all or self.owns(job_id)

    def limits_in_partition(self, tag: str) -> KeyLimits | None:
        """Its limits, with their counters in the partition of that tag.

        `limits` counts in the home partition, which holds everything but core jobs.
        """
        if self.limits is None or self.record is None:
            return self.limits
        return self.record.limits(AccessKeys(tag))

    @property
    def may_lapse(self) -> bool:
        """True if its authorisation may end while a request is served."""
        return bool(self.key_id or self.token_expires_s)

    def with_token(self, expires_s: int) -> Caller:
        """The caller behind a read token of this one. The token's routes limit what it reads."""
        return replace(self, scopes=_TOKEN_SCOPES, token_expires_s=expires_s)

    def may(self, scope: Scope) -> bool:
        return scope.value in self.scopes


#: A local caller without a key: the operator of the machine.
LOCAL = Caller("", "local", _ALL_SCOPES, sees_all=True)
#: A caller without a key on a public endpoint.
ANONYMOUS = Caller("", "anonymous", frozenset())


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope[SCOPE_KEY]
    return caller


class _CachedKey(NamedTuple):
    """The record of a key as read from Redis, and the time of the read."""

    record: AccessRecord | None
    caller: Caller | None
    at: float
    #: Text of the key that was verified since then; the same text is not verified again.
    proven: str = ""


class Callers:
    """Resolves API keys and sessions to callers, with a cache."""

    def __init__(
        self,
        store: KeyStore,
        clock: Callable[[], float] = time.monotonic,
        sessions: SessionStore | None = None,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._clock = clock
        self._cache: dict[str, _CachedKey] = {}
        self._lookup = BatchedLookup(self._find)
        self._noted: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()

    async def identify(self, key: str) -> Caller | None:
        """The caller of an API key; None if the key is invalid.

        Raises StoreUnavailable if that cannot be determined.
        """
        cached = self._cache.get(key[KEY_ID_SLICE])
        if (
            cached is not None
            and self._clock() - cached.at < CACHE_TTL_S
            and key.isascii()
            and hmac.compare_digest(cached.proven, key)
        ):
            return cached.caller
        presented = parse_key(key)
        if presented is None:
            return None
        caller = await self._caller(presented)
        if caller is not None:
            cached = self._cache.get(caller.key_id)
            if cached is not None and cached.caller is caller:
                self._cache[caller.key_id] = cached._replace(proven=key)
        return caller

    async def by_key_id(self, key_id: str) -> Caller | None:
        """The caller of a key id, without its secret; None if the key is revoked or expired.

        For requests that are authenticated by another signed token, such as an upload token.
        """
        cached = self._cache.get(key_id)
        if cached is None or self._clock() - cached.at >= CACHE_TTL_S:
            cached = await self._lookup.get(key_id)
        if cached.record is None or cached.record.is_expired(int(time.time() * 1000)):
            return None
        return _caller_of(cached.record, self._store)

    async def by_session(self, session: Session) -> Caller | None:
        """The caller of a session; None if its key is no longer valid or lacks the scope `ui`."""
        caller = await self._caller(PresentedKey(session.key_id, session.key_digest))
        if caller is None or not caller.may(Scope.UI):
            return None
        return replace(caller, session=session.digest)

    async def is_still_valid(self, caller: Caller) -> bool:
        """True if the caller's key, session or token are still valid; checked by long-lived
        streams.

        Also true while Redis is unreachable, except for an expired token.
        """
        if caller.token_expires_s and caller.token_expires_s <= time.time():
            return False
        if not caller.key_id:
            return True
        if caller.session and self._sessions is not None:
            try:
                if await self._sessions.by_digest(caller.session) is None:
                    return False
            except SluiceError:
                return True
        if caller.token_expires_s:
            try:
                return await self.by_key_id(caller.key_id) is not None
            except SluiceError:
                return True
        cached = self._cache.get(caller.key_id)
        if (
            cached is not None
            and cached.caller is not None
            and cached.caller.digest == caller.digest  # set only after verification
            and self._clock() - cached.at < CACHE_TTL_S
        ):
            return True
        try:
            return await self._caller(PresentedKey(caller.key_id, caller.digest)) is not None
        except SluiceError:
            return True  # unknown; without Redis the stream delivers no new events anyway

    def invalidate(self, key_id: str) -> None:
        """Drop the cached record of a key that has just changed."""
        self._cache.pop(key_id, None)

    async def close(self) -> None:
        await self._lookup.close()
        if self._sessions is not None:
            await self._sessions.close()
        await cancel(*self._noting)

    async def _caller(self, presented: PresentedKey) -> Caller | None:
        cached = self._cache.get(presented.key_id)
        if cached is None or self._clock() - cached.at >= CACHE_TTL_S:
            cached = await self._lookup.get(presented.key_id)
        now_ms = int(time.time() * 1000)
        secrets = () if cached.record is None else cached.record.secrets
        # Runs without a record, too, so that timing does not reveal which key ids exist.
        valid = is_valid_secret(secrets, presented.digest, now_ms)
        if (
            not valid
            or cached.caller is None
            or cached.record is None
            or cached.record.is_expired(now_ms)
        ):
            return None
        caller = cached.caller
        if caller.digest != presented.digest:
            caller = _caller_of(cached.record, self._store, presented.digest)
            self._cache[presented.key_id] = cached._replace(caller=caller, proven="")
        self._note_use(presented.key_id, now_ms)
        return caller

    async def _find(self, key_ids: list[str]) -> list[_CachedKey]:
        read_at = self._clock()
        found = []
        for key_id, record in zip(key_ids, await self._store.find(key_ids)):
            caller = None if record is None else _caller_of(record, self._store)
            cached = _CachedKey(record, caller, read_at)
            self._cache.pop(key_id, None)
            self._cache[key_id] = cached
            found.append(cached)
        while len(self._cache) > MAX_CACHED_KEYS:
            del self._cache[next(iter(self._cache))]
        return found

    def _note_use(self, key_id: str, now_ms: int) -> None:
        now = self._clock()
        if now - self._noted.get(key_id, -NOTE_USE_S) < NOTE_USE_S:
            return
        if len(self._noted) > MAX_CACHED_KEYS:
            self._noted.clear()
        self._noted[key_id] = now
        task = asyncio.create_task(self._write_use(key_id, now_ms))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_use(self, key_id: str, now_ms: int) -> None:
        try:
            await self._store.record_use(key_id, now_ms)
        except SluiceError as error:
            log.debug("key %s: last use not recorded: %s", key_id, error)


def _caller_of(record: AccessRecord, store: KeyStore, digest: str = "") -> Caller:
    admin = Scope.ADMIN.value in record.scopes
    return Caller(
        key_id=record.key_id,
        name=record.name,
        scopes=_ALL_SCOPES if admin else record.scopes,
        tenant=record.tenant,
        tail=tenant_tail(record.tenant),
        sees_all=admin or not record.tenant,
        tasks=record.tasks,
        tools=record.tools,
        limits=record.limits(store.keys),
        record=record,
        digest=digest,
    )
