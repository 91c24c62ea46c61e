"""Who calls: from the text of an API key to a caller, with one look at Redis a second and key.

Keys are read in batches, one at a time: what is asked for meanwhile goes together in the next
one. So a storm of made-up keys costs Redis no more than one small command under way.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.requests import Request

from common.access import KeyStore
from common.access_limits import Limits
from common.access_record import AccessRecord, knows, tail_of
from common.access_text import ID_PART, Presented, parse
from common.cancellation import cancel
from common.contracts.access import Scope
from common.errors import SluiceError, StoreUnavailable

log = logging.getLogger(__name__)

#: How long a record is believed: a revoked key is out after this at the latest.
FRESH_S = 1.0
#: How long Redis may take to say who somebody is.
PATIENCE_S = 2.5
#: How often a use is written down.
NOTE_USE_S = 60.0
#: Keys asked for at once, and remembered.
BATCH = 256
REMEMBERED = 4096
#: Where the guard leaves the caller for the routes.
SCOPE_KEY = "sluice.caller"
_EVERYTHING = frozenset(scope.value for scope in Scope)


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
    limits: Limits | None = None
    record: AccessRecord | None = field(default=None, repr=False)
    digest: str = field(default="", repr=False)

    @property
    def who(self) -> str:
        """As the trail calls it."""
        return self.key_id or self.name

    def owns(self, job_id: str) -> bool:
        """Whether it is a job of its tenant."""
        return bool(self.tail) and job_id.endswith(self.tail)

    def may_see(self, job_id: str) -> bool:
        """Whether there is such a job, as far as this caller is concerned."""
        return self.sees_all or self.owns(job_id)

    def may(self, scope: Scope) -> bool:
        """Whether it has a scope."""
        return scope.value in self.scopes


#: Whoever sits at the machine itself, and comes without a key.
LOCAL = Caller("", "local", _EVERYTHING, sees_all=True)
#: Whoever asks for what is everybody's.
NOBODY = Caller("", "nobody", frozenset())


def caller_of(request: Request) -> Caller:
    """Whom the guard let in."""
    caller: Caller = request.scope[SCOPE_KEY]
    return caller


class _Seen(NamedTuple):
    """What Redis said of a key, and when it was asked."""

    record: AccessRecord | None
    caller: Caller | None
    at: float
    #: The text that has proven itself since then; the same once more needs no second proof.
    proven: str = ""


class Callers:
    """Knows callers by their keys."""

    def __init__(self, store: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        #: Keys that somebody waits for, whether asked for already or next.
        self._awaited: dict[str, asyncio.Future[_Seen]] = {}
        self._next: list[str] = []
        self._reading: asyncio.Task[None] | None = None
        self._noted: dict[str, float] = {}
        self._noting: set[asyncio.Task[None]] = set()

    async def identify(self, key: str) -> Caller | None:
        """Whose key this is; None for nobody's. Raises StoreUnavailable when nobody knows."""
        seen = self._seen.get(key[ID_PART])
        if (
            seen is not None
            and self._clock() - seen.at < FRESH_S
            and key.isascii()
            and hmac.compare_digest(seen.proven, key)
        ):
            return seen.caller
        presented = parse(key)
        if presented is None:
            return None
        caller = await self._caller(presented)
        if caller is not None:
            seen = self._seen.get(caller.key_id)
            if seen is not None and seen.caller is caller:
                self._seen[caller.key_id] = seen._replace(proven=key)
        return caller

    async def still_valid(self, caller: Caller) -> bool:
        """Whether the key is as good as when it came; asked by answers that go on and on."""
        if not caller.key_id:
            return True
        seen = self._seen.get(caller.key_id)
        if (
            seen is not None
            and seen.caller is not None
            and seen.caller.digest == caller.digest  # only ever set to what was proven
            and self._clock() - seen.at < FRESH_S
        ):
            return True
        try:
            return await self._caller(Presented(caller.key_id, caller.digest)) is not None
        except SluiceError:
            return True  # nobody can say, and nothing new comes from Redis meanwhile

    def forget(self, key_id: str) -> None:
        """The key has just changed: ask again."""
        self._seen.pop(key_id, None)

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = [*self._noting, *([] if self._reading is None else [self._reading])]
        await cancel(*tasks)

    async def _caller(self, presented: Presented) -> Caller | None:
        seen = self._seen.get(presented.key_id)
        if seen is None or self._clock() - seen.at >= FRESH_S:
            seen = await self._ask(presented.key_id)
        now_ms = int(time.time() * 1000)
        secrets = () if seen.record is None else seen.record.secrets
        known = knows(secrets, presented.digest, now_ms)  # as much work where there is no record
        if not known or seen.caller is None or seen.record is None or seen.record.expired(now_ms):
            return None
        caller = seen.caller
        if caller.digest != presented.digest:
            caller = _caller_of(seen.record, self._store, presented.digest)
            self._seen[presented.key_id] = seen._replace(caller=caller, proven="")
        self._note_use(presented.key_id, now_ms)
        return caller

    async def _ask(self, key_id: str) -> _Seen:
        awaited = self._awaited.get(key_id)
        if awaited is None:
            awaited = asyncio.get_running_loop().create_future()
            self._awaited[key_id] = awaited
            self._next.append(key_id)
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(awaited)

    async def _read(self) -> None:
        try:
            while self._next:
                batch, self._next = self._next[:BATCH], self._next[BATCH:]
                await self._read_batch(batch)
        finally:
            self._reading = None
            for awaited in self._awaited.values():  # only where it was canceled
                awaited.cancel()
            self._awaited.clear()

    async def _read_batch(self, batch: list[str]) -> None:
        asked_at = self._clock()
        try:
            records = await asyncio.wait_for(self._store.find(batch), PATIENCE_S)
        except Exception as error:  # whatever it is, nobody gets in by it, and nobody waits on
            if not isinstance(error, (SluiceError, asyncio.TimeoutError)):
                log.exception("keys could not be read")
            fault = StoreUnavailable(str(error) or "no answer in time")
            for key_id in batch:
                awaited = self._awaited.pop(key_id)
                awaited.set_exception(fault)
                awaited.exception()  # whoever asked may have left
            return
        for key_id, record in zip(batch, records):
            caller = None if record is None else _caller_of(record, self._store)
            seen = _Seen(record, caller, asked_at)
            self._seen.pop(key_id, None)
            self._seen[key_id] = seen
            self._awaited.pop(key_id).set_result(seen)
        while len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _note_use(self, key_id: str, now_ms: int) -> None:
        now = self._clock()
        if now - self._noted.get(key_id, -NOTE_USE_S) < NOTE_USE_S:
            return
        if len(self._noted) > REMEMBERED:
            self._noted.clear()
        self._noted[key_id] = now
        task = asyncio.create_task(self._write_use(key_id, now_ms))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_use(self, key_id: str, now_ms: int) -> None:
        try:
            await self._store.note_use(key_id, now_ms)
        except SluiceError as error:
            log.debug("the use of a key was not noted: %s", error)


def _caller_of(record: AccessRecord, store: KeyStore, digest: str = "") -> Caller:
    admin = Scope.ADMIN.value in record.scopes
    return Caller(
        key_id=record.key_id,
        name=record.name,
        scopes=_EVERYTHING if admin else record.scopes,
        tenant=record.tenant,
        tail=tail_of(record.tenant),
        sees_all=admin or not record.tenant,
        tasks=record.tasks,
        tools=record.tools,
        limits=record.limits(store.keys),
        record=record,
        digest=digest,
    )
