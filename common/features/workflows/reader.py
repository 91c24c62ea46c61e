"""WorkflowReader: reads workflow jobs; only the scripts write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.codec import Event
from sluice.common.contracts.workflow.fields import StepField, StoredAnswerField, WorkflowJobField
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import ItemStatus
from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.features.workflows.definitions import WorkflowDefinition
from sluice.common.features.workflows.records import (
    STEP_FIELDS,
    EventPage,
    Item,
    ItemPage,
    PageInfo,
    StepRecord,
    WorkflowJob,
    parse_item,
    parse_job_definition,
)
from sluice.common.features.workflows.types import IdempotencyClaim
from sluice.common.jobs.store import read_reply

#: Default and maximum page sizes.
EVENTS_PAGE_SIZE = 200
ITEMS_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500
#: Items read per round trip if they are filtered.
SCAN_SIZE = 1000
#: Jobs whose step names are cached, so that a status takes one round trip.
MAX_CACHED_JOBS = 4096
#: Jobs read per round trip.
BATCH_SIZE = 100


class WorkflowReader:
    """Reads workflow jobs of all tenants.

    Raises StoreUnavailable if Redis is unavailable, and CorruptKey if a key is invalid.
    """

    def __init__(self, client: Redis, keys: WorkflowKeys | None = None) -> None:
        self._client = client
        self.keys = keys or WorkflowKeys()
        #: Step names of jobs that were read before.
        self._steps: dict[str, tuple[str, ...]] = {}

    # -- jobs ------------------------------------------------------------------------------

    async def snapshot(self, job_id: str) -> WorkflowJob | None:
        """A job at one moment; None if it does not exist."""
        return (await self.snapshots((job_id,)))[0]

    async def snapshots(
        self, job_ids: Sequence[str], *, lenient: bool = False
    ) -> list[WorkflowJob | None]:
        """Many jobs; `lenient`: invalid ones count as missing."""
        found: dict[str, WorkflowJob | None] = {}
        for start in range(0, len(job_ids), BATCH_SIZE):
            await self._read_jobs(job_ids[start : start + BATCH_SIZE], found, lenient)
        return [found.get(job_id) for job_id in job_ids]

    async def _read_jobs(
        self, job_ids: Sequence[str], found: dict[str, WorkflowJob | None], lenient: bool
    ) -> None:
        await self._learn([job_id for job_id in job_ids if job_id not in self._steps], lenient)
        waiting = [job_id for job_id in job_ids if job_id in self._steps]
        for _ in range(3):  # an id may be reused by a job with another definition, but rarely
            if not waiting:
                return
            queried = [(job_id, self._steps[job_id]) for job_id in waiting]
            async with self._client.pipeline(transaction=True) as pipe:
                for job_id, steps in queried:
                    self._query_status(pipe, job_id, steps)
                replies = await read_pipeline(pipe)
            waiting = []
            for index, (job_id, steps) in enumerate(queried):
                own = replies[index * _STATUS_REPLIES : (index + 1) * _STATUS_REPLIES]
                try:
                    job = self._job(job_id, steps, own)
                except CorruptKey:
                    if not lenient:
                        raise
                    continue
                if job is None or tuple(job.steps) == steps:
                    found[job_id] = job
                else:
                    self._cache_steps(job_id, job.definition)
                    waiting.append(job_id)

    async def _learn(self, job_ids: Sequence[str], lenient: bool) -> None:
        """Read the step names of jobs that are not cached."""
        if not job_ids:
            return
        async with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(self.keys.job(job_id), WorkflowJobField.DEFINITION)
            replies = await read_pipeline(pipe)
        for job_id, raw in zip(job_ids, replies):
            if not isinstance(raw, bytes):
                continue
            try:
                self._cache_steps(job_id, parse_job_definition(raw, job_id))
            except CorruptKey:
                if not lenient:
                    raise

    def _cache_steps(self, job_id: str, definition: WorkflowDefinition) -> None:
        self._steps.pop(job_id, None)
        while len(self._steps) >= MAX_CACHED_JOBS:
            del self._steps[next(iter(self._steps))]
        self._steps[job_id] = tuple(step.name for step in definition.steps)

    def _query_status(self, pipe: Any, job_id: str, steps: tuple[str, ...]) -> None:
        keys = self.keys
        pipe.hgetall(keys.job(job_id))
        pipe.hmget(keys.steps(job_id), _step_fields(steps))
        pipe.llen(keys.undo(job_id))
        pipe.lindex(keys.undo(job_id), 0)
        pipe.xlen(keys.events(job_id))
        pipe.zcard(keys.order(job_id))
        pipe.zrange(keys.order(job_id), ITEMS_PAGE_SIZE - 1, ITEMS_PAGE_SIZE - 1, withscores=True)

    def _job(self, job_id: str, steps: Sequence[str], replies: Sequence[Any]) -> WorkflowJob | None:
        stored, fields, depth, token, events, items, boundary = replies
        if not isinstance(stored, dict) or not stored:
            return None
        for reply in replies:
            if isinstance(reply, Exception):
                raise CorruptKey(f"a key of workflow job {job_id} is invalid: {reply}")
        job = WorkflowJob.from_hash(job_id, stored, _steps_in(steps, fields))
        if tuple(job.steps) == steps and not any(fields):
            return None  # its keys expire together, but not in the same instant
        return replace(
            job,
            undo_depth=depth,
            last_undo_token=codec.decode_text(token or b""),
            # Event numbers have no gaps, and the oldest events are trimmed.
            events=_first_page(events, EVENTS_PAGE_SIZE, job.event_seq - events + EVENTS_PAGE_SIZE),
            items=_first_page(items, ITEMS_PAGE_SIZE, int(boundary[0][1]) if boundary else 0),
        )

    async def options(self, job_id: str, step: str) -> bytes:
        """A step's options as given by the client (JSON); empty if there are none."""
        field = f"{step}.{StepField.OPTIONS}"
        command: Any = self._client.hget(self.keys.steps(job_id), field)
        return await read_reply(command) or b""

    async def data(self, job_id: str, execution: str, name: str) -> bytes | None:
        """Data that an execution of a step stored for later ones."""
        command: Any = self._client.hget(self.keys.data(job_id), f"{execution}:{name}")
        found: bytes | None = await read_reply(command)
        return found

    async def exists(self, key: str) -> bool:
        """True if a key exists, such as that of an earlier request."""
        return bool(await read_reply(self._client.exists(key)))

    async def stored_answer(self, once: IdempotencyClaim) -> tuple[int, bytes] | None:
        """Status and body of an earlier response to this request."""
        fields = (
            StoredAnswerField.FINGERPRINT,
            StoredAnswerField.STATUS_CODE,
            StoredAnswerField.BODY,
        )
        command: Any = self._client.hmget(once.key, list(fields))
        print_, status_code, body = await read_reply(command)
        if not status_code or codec.decode_text(print_ or b"") != once.fingerprint:
            return None
        return codec.parse_int(status_code), body or b""

    # -- items -----------------------------------------------------------------------------

    async def items(
        self,
        job_id: str,
        step: str | None = None,
        after_seq: int = 0,
        limit: int = ITEMS_PAGE_SIZE,
        status: ItemStatus | None = None,
        offset: int = 0,
        definition: WorkflowDefinition | None = None,
    ) -> ItemPage:
        """A page of a step's items, or of all items, in order of creation."""
        definition = definition or await self._definition(job_id)
        if definition is None:
            return ItemPage((), PageInfo(0, False, 0, 0))
        order = self.keys.order(job_id) if step is None else self.keys.step_order(job_id, step)
        if status is None:
            found, total = await self._numbers(order, after_seq, offset, limit + 1)
        else:
            found, total = await self._numbers_of(
                job_id, order, status, after_seq, offset, limit + 1
            )
        page = found[:limit]
        items = await self._items(job_id, definition, page)
        has_more = len(found) > limit
        return ItemPage(
            items, PageInfo(len(items), has_more, page[-1][1] if has_more else 0, total)
        )

    async def item(self, job_id: str, item_id: str) -> Item | None:
        definition = await self._definition(job_id)
        if definition is None:
            return None
        command: Any = self._client.zscore(self.keys.order(job_id), item_id)
        seq = await read_reply(command)
        if seq is None:
            return None
        return next(iter(await self._items(job_id, definition, [(item_id, int(seq))])), None)

    async def items_by_id(self, job_id: str, ids: Sequence[str]) -> list[Item]:
        """Those of these items that exist, in this order."""
        definition = await self._definition(job_id)
        if definition is None or not ids:
            return []
        async with self._client.pipeline(transaction=True) as pipe:
            for item_id in ids:
                pipe.zscore(self.keys.order(job_id), item_id)
            numbers = await read_pipeline(pipe)
        existing = [
            (item_id, int(seq))
            for item_id, seq in zip(ids, numbers)
            if seq is not None and not isinstance(seq, Exception)
        ]
        return await self._items(job_id, definition, existing)

    async def step_items(self, job_id: str, step: str) -> list[Item]:
        definition = await self._definition(job_id)
        found: list[Item] = []
        after = 0
        while True:
            page = await self.items(job_id, step, after, MAX_PAGE_SIZE, definition=definition)
            found += page.items
            if not page.page.has_more:
                return found
            after = page.page.last

    async def _definition(self, job_id: str) -> WorkflowDefinition | None:
        command: Any = self._client.hget(self.keys.job(job_id), WorkflowJobField.DEFINITION)
        raw = await read_reply(command)
        return None if raw is None else parse_job_definition(raw, job_id)

    async def _numbers(
        self, order: str, after_seq: int, offset: int, most: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Ids and numbers after a number, and the total."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.zrangebyscore(
                order, f"({after_seq}", "+inf", start=offset, num=most, withscores=True
            )
            pipe.zcard(order)
            found, total = await read_pipeline(pipe)
        if isinstance(found, Exception) or isinstance(total, Exception):
            raise CorruptKey(f"{order} is not a list of items")
        return [(codec.decode_text(item_id), int(seq)) for item_id, seq in found], int(total)

    async def _numbers_of(
        self, job_id: str, order: str, status: ItemStatus, after_seq: int, offset: int, most: int
    ) -> tuple[list[tuple[str, int]], int]:
        """The same for items with a status. All states are read, a thousand at a time."""
        beginning = status.value.encode() + b" "
        matching: list[tuple[str, int]] = []
        total, skipped, last = 0, 0, 0
        while True:
            found, _ = await self._numbers(order, last, 0, SCAN_SIZE)
            if found:
                ids = [item_id for item_id, _ in found]
                command: Any = self._client.hmget(self.keys.states(job_id), ids)
                states = await read_reply(command) or [None] * len(ids)
                for entry, state in zip(found, states):
                    if state is None or not state.startswith(beginning):
                        continue
                    total += 1
                    if entry[1] <= after_seq or len(matching) == most:
                        continue
                    if skipped < offset:
                        skipped += 1
                    else:
                        matching.append(entry)
                last = found[-1][1]
            if len(found) < SCAN_SIZE:
                return matching, total

    async def _items(
        self, job_id: str, definition: WorkflowDefinition, numbered: Sequence[tuple[str, int]]
    ) -> list[Item]:
        if not numbered:
            return []
        ids = [item_id for item_id, _ in numbered]
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hmget(self.keys.items(job_id), ids)
            pipe.hmget(self.keys.states(job_id), ids)
            pipe.hmget(self.keys.undoable(job_id), ids)
            pipe.lrange(self.keys.undo(job_id), 0, -1)
            replies = await read_pipeline(pipe)
        if any(isinstance(reply, Exception) for reply in replies):
            raise CorruptKey(f"the items of workflow job {job_id} are invalid")
        payloads, states, changed_by, stack = replies
        found = []
        for (item_id, seq), payload, state, token in zip(numbered, payloads, states, changed_by):
            if payload is None or state is None:  # replaced meanwhile, or expired
                continue
            item = parse_item(definition, item_id, seq, payload, state)
            if item is not None:
                found.append(item._replace(undoable=token in stack))
        return found

    # -- events ----------------------------------------------------------------------------

    async def events(
        self, job_id: str, after_seq: int = 0, limit: int = EVENTS_PAGE_SIZE, offset: int = 0
    ) -> EventPage:
        """A page of a job's events, oldest first; the oldest may have been trimmed."""
        key = self.keys.events(job_id)
        start = f"({after_seq}-0" if after_seq else "-"
        if offset:
            # Numbers have no gaps: skipped events need not be read.
            oldest: Any = self._client.xrange(key, start, "+", count=1)
            first = _events(await read_reply(oldest) or ())
            start = str(_seq(first[0]) + offset) if first else start
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.xrange(key, start, "+", count=limit + 1)
            pipe.xlen(key)
            entries, total = await read_pipeline(pipe)
        if isinstance(entries, Exception) or isinstance(total, Exception):
            raise CorruptKey(f"{key} is not a stream of events")
        found = _events(entries)
        events = found[:limit]
        has_more = len(found) > limit
        last = _seq(events[-1]) if has_more else 0
        return EventPage(events, PageInfo(len(events), has_more, last, int(total)))


#: Number of replies to `_query_status`.
_STATUS_REPLIES = 7


async def read_pipeline(pipe: Any) -> list[Any]:
    """The replies of a pipeline; an exception among them means that a key has the wrong type."""
    replies = await read_reply(pipe.execute(raise_on_error=False))
    for reply in replies:
        if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
            raise StoreUnavailable(str(reply))
    return list(replies)


@lru_cache(maxsize=256)
def _step_fields(steps: tuple[str, ...]) -> list[bytes]:
    return [f"{step}.{field}".encode() for step in steps for field in STEP_FIELDS]


def _steps_in(steps: Sequence[str], values: Sequence[bytes | None]) -> dict[str, StepRecord]:
    size = len(STEP_FIELDS)
    found = {}
    for index, name in enumerate(steps):
        own = values[index * size : (index + 1) * size]
        stored: dict[str, bytes] = {
            field: value for field, value in zip(STEP_FIELDS, own) if value is not None
        }
        found[name] = StepRecord.from_fields(name, stored)
    return found


def _first_page(total: int, limit: int, boundary: int) -> PageInfo:
    has_more = total > limit
    return PageInfo(min(total, limit), has_more, max(0, boundary) if has_more else 0, total)


def _events(entries: Iterable[Any]) -> list[Event]:
    return [Event.from_entry(entry_id, fields or {}) for entry_id, fields in entries]


def _seq(event: Event) -> int:
    return (codec.parse_stream_id(event.id) or (0, 0))[0]
