"""Who calls: from the text of an API key to a caller, with one look at Redis a second and key."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from starlette.requests import Request

from common.access.key_format import KEY_ID_SLICE, PresentedKey, parse_key
from common.access.record import AccessRecord, is_valid_secret, tenant_tail
from common.access.store import KeyStore
from common.aio import cancel
from common.contracts.access import AccessKeys, Scope
from common.errors import SluiceError
from common.jobs.limits import KeyLimits
from gateway.auth.batched_lookup import BatchedLookup
from gateway.dashboard.sessions import Session, SessionStore

log = logging.getLogger(__name__)

#: How long a record is believed: a revoked key is out after this at the latest.
CACHE_TTL_S = 1.0
#: How often a use is written down.
NOTE_USE_S = 60.0
#: Keys remembered.
MAX_CACHED_KEYS = 4096
#: Where the guard leaves the caller for the routes.
SCOPE_KEY = "sluice.caller"
_ALL_SCOPES = frozenset(scope.value for scope in Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may do something."""

    key_id: str
    name: str
    scopes: frozenset[str]
    tenant: str = ""
    #: How the ids of its tenant's jobs end; '' without a tenant.
    tail: str = ""
    #: Whether the jobs of all tenants are there for it.
    sees_all: bool = False
    tasks: frozenset[str] | None = None
    #: Tools its jobs may use; None for any.
    tools: frozenset[str] | None = None
    limits: KeyLimits | None = None
    record: AccessRecord | None = field(default=None, repr=False)
    digest: str = field(default="", repr=False)
    #: The session by which it came, where it came by one.
    session: str = field(default="", repr=False)

    @property
    def who(self) -> str:
        return self.key_id or self.name

    def owns(self, job_id: str) -> bool:
        """Whether it is a job of its tenant."""
        return bool(self.tail) and job_id.endswith(self.tail)

    def may_see(self, job_id: str) -> bool:
        """Whether there is such a job, as far as this caller is concerned."""
        return self.sees_all or self.owns(job_id)

    def limits_in_partition(self, tag: str) -> KeyLimits | None:
        """Its limits, their state kept in the partition of that tag: `limits` are those of home,
        where everything is counted that is no plain job."""
        if self.limits is None or self.record is None:
            return self.limits
        return self.record.limits(AccessKeys(tag))

    def may(self, scope: Scope) -> bool:
        return scope.value in self.scopes


#: Whoever sits at the machine itself, and comes without a key.
LOCAL = Caller("", "local", _ALL_SCOPES, sees_all=True)
#: Whoever asks for what is everybody's.
ANONYMOUS = Caller("", "nobody", frozenset())


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope[SCOPE_KEY]
    return caller


class _CachedKey(NamedTuple):
    """What Redis said of a key, and when it was asked."""

    record: AccessRecord | None
    caller: Caller | None
    at: float
    #: The text that has proven itself since then; the same once more needs no second proof.
    proven: str = ""


class Callers:
    """Knows callers by their keys."""

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
        """Whose key this is; None for nobody's. Raises StoreUnavailable when nobody knows."""
        seen = self._cache.get(key[KEY_ID_SLICE])
        if (
            seen is not None
            and self._clock() - seen.at < CACHE_TTL_S
            and key.isascii()
            and hmac.compare_digest(seen.proven, key)
        ):
            return seen.caller
        presented = parse_key(key)
        if presented is None:
            return None
        caller = await self._caller(presented)
        if caller is not None:
            seen = self._cache.get(caller.key_id)
            if seen is not None and seen.caller is caller:
                self._cache[caller.key_id] = seen._replace(proven=key)
        return caller

    async def by_key_id(self, key_id: str) -> Caller | None:
        """Whose key this id names, shown or not; None where it is not good any more.

        For who comes with something else that the key's owner has signed for.
        """
        seen = self._cache.get(key_id)
        if seen is None or self._clock() - seen.at >= CACHE_TTL_S:
            seen = await self._lookup.get(key_id)
        if seen.record is None or seen.record.is_expired(int(time.time() * 1000)):
            return None
        return _caller_of(seen.record, self._store)

    async def by_session(self, session: Session) -> Caller | None:
        """Whose session it is; None where the key by which it was begun is not good for one any
        more."""
        caller = await self._caller(PresentedKey(session.key_id, session.key_digest))
        if caller is None or not caller.may(Scope.UI):
            return None
        return replace(caller, session=session.digest)

    async def is_still_valid(self, caller: Caller) -> bool:
        """Whether the key is as good as when it came; asked by answers that go on and on."""
        if not caller.key_id:
            return True
        if caller.session and self._sessions is not None:
            try:
                if await self._sessions.by_digest(caller.session) is None:
                    return False
            except SluiceError:
                return True
        seen = self._cache.get(caller.key_id)
        if (
            seen is not None
            and seen.caller is not None
            and seen.caller.digest == caller.digest  # only ever set to what was proven
            and self._clock() - seen.at < CACHE_TTL_S
        ):
            return True
        try:
            return await self._caller(PresentedKey(caller.key_id, caller.digest)) is not None
        except SluiceError:
            return True  # nobody can say, and nothing new comes from Redis meanwhile

    def invalidate(self, key_id: str) -> None:
        """The key has just changed: ask again."""
        self._cache.pop(key_id, None)

    async def close(self) -> None:
        await self._lookup.close()
        if self._sessions is not None:
            await self._sessions.close()
        await cancel(*self._noting)

    async def _caller(self, presented: PresentedKey) -> Caller | None:
        seen = self._cache.get(presented.key_id)
        if seen is None or self._clock() - seen.at >= CACHE_TTL_S:
            seen = await self._lookup.get(presented.key_id)
        now_ms = int(time.time() * 1000)
        secrets = () if seen.record is None else seen.record.secrets
        known = is_valid_secret(
            secrets, presented.digest, now_ms
        )  # as much work where there is no record
        if (
            not known
            or seen.caller is None
            or seen.record is None
            or seen.record.is_expired(now_ms)
        ):
            return None
        caller = seen.caller
        if caller.digest != presented.digest:
            caller = _caller_of(seen.record, self._store, presented.digest)
            self._cache[presented.key_id] = seen._replace(caller=caller, proven="")
        self._note_use(presented.key_id, now_ms)
        return caller

    async def _find(self, key_ids: list[str]) -> list[_CachedKey]:
        asked_at = self._clock()
        found = []
        for key_id, record in zip(key_ids, await self._store.find(key_ids)):
            caller = None if record is None else _caller_of(record, self._store)
            seen = _CachedKey(record, caller, asked_at)
            self._cache.pop(key_id, None)
            self._cache[key_id] = seen
            found.append(seen)
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
            log.debug("the use of a key was not noted: %s", error)


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
