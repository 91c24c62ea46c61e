"""Events of a running attempt: in order, once each, and limited by the speed of Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sluice.worker.execution.context
from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey
from sluice.common.jobs.store import Lease, PendingEvent, WorkerIdentity
from sluice.worker.errors import AttemptLost
from sluice.worker.execution.context import MAX_EVENT_BYTES, EventBuffer, JobContext, Outbox
from sluice.worker.execution.executor import Outcome
from tests.support.worker.harness import MakeWorker


class SlowStore:
    """Accepts events one call at a time, each when the test allows it."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[str]]] = []
        self.turns: asyncio.Queue[Any] = asyncio.Queue()

    async def emit(
        self, lease: Lease, identity: WorkerIdentity, first: int, events: list[PendingEvent]
    ) -> Answer:
        self.calls.append((first, [event.type for event in events]))
        answer = await self.turns.get()
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer)


@pytest.fixture
def slow() -> SlowStore:
    return SlowStore()


@pytest.fixture
def context(slow: SlowStore, worker: WorkerIdentity) -> JobContext:
    lease = Lease("j", "1-1", 1, "t")
    return JobContext(lease, "chat", EventBuffer(lease, Outbox(slow, worker)))  # type: ignore[arg-type]


async def ticks(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_events_of_one_tick_share_a_call(slow: SlowStore, context: JobContext) -> None:
    for name in ("a", "b", "c"):
        await context.emit(name)
    await ticks()
    assert slow.calls == [(1, ["a", "b", "c"])]
    await context.emit("d")
    await context.emit("e")
    await ticks()
    assert len(slow.calls) == 1  # one call at a time
    slow.turns.put_nowait("ok")
    await ticks()
    assert slow.calls[1:] == [(4, ["d", "e"])]
    slow.turns.put_nowait("ok")
    await ticks()
    assert await context._events.take_unsent() == (6, [])


async def test_the_last_events_are_left_for_finish(slow: SlowStore, context: JobContext) -> None:
    await context.emit("a")
    first, unsent = await context._events.take_unsent()
    assert (first, [event.type for event in unsent]) == (1, ["a"])
    await ticks()
    assert slow.calls == []


async def test_take_unsent_waits_for_the_call_in_progress(
    slow: SlowStore, context: JobContext
) -> None:
    await context.emit("a")
    await ticks()
    taking = asyncio.create_task(context._events.take_unsent())
    await ticks()
    assert not taking.done()
    slow.turns.put_nowait("ok")
    assert await asyncio.wait_for(taking, 5) == (2, [])


async def test_a_fast_handler_waits_for_a_slow_redis(
    slow: SlowStore, context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.worker.execution.context, "MAX_UNSENT_EVENTS", 3)

    async def chatter() -> None:
        for number in range(20):
            await context.emit(f"e{number}")

    talking = asyncio.create_task(chatter())
    await ticks(50)
    assert not talking.done()
    assert len(context._events._unsent) <= 3
    for _ in range(20):
        slow.turns.put_nowait("ok")
    await asyncio.wait_for(talking, 5)
    await ticks(50)
    sent = [name for _, names in slow.calls for name in names]
    assert sent == [f"e{number}" for number in range(20)]
    numbers = [first for first, _ in slow.calls]
    assert numbers == [1 + sum(len(n) for _, n in slow.calls[:i]) for i in range(len(numbers))]


@pytest.mark.parametrize("answer", ["lost", "gone", CorruptKey("spoilt"), "ok"])
async def test_emit_after_the_loss_raises(
    slow: SlowStore, context: JobContext, answer: object
) -> None:
    """Also if the loss was reported during a call that still wrote its events."""
    await context.emit("a")
    await ticks()
    context._events.lost = answer == "ok"
    slow.turns.put_nowait(answer)
    await ticks()
    with pytest.raises(AttemptLost):
        await context.emit("b")
    await ticks()
    assert len(slow.calls) == 1


async def test_a_handler_blocked_on_a_full_buffer_sees_the_loss(
    slow: SlowStore, context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.worker.execution.context, "MAX_UNSENT_EVENTS", 1)

    async def chatter() -> None:
        while True:
            await context.emit("x")

    talking = asyncio.create_task(chatter())
    await ticks(20)
    slow.turns.put_nowait("lost")
    with pytest.raises(AttemptLost):
        await asyncio.wait_for(talking, 5)


RESERVED = ["queued", "running", "done", "error", "canceling", "canceled"]


@pytest.mark.parametrize(
    ("type", "data", "options"),
    [
        *((type, {}, {}) for type in RESERVED),
        *((type, {}, {}) for type in ("", "two\nlines", "a\rb", "\x00", "\ud800", "\u2028")),
        *(("a", data, {}) for data in (..., {1}, b"x", "\ud800", "x" * MAX_EVENT_BYTES)),
        *(("a", {}, {"step": step}) for step in (None, "\ud800", b"x", ["a"], "two\nlines")),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_invalid_events_fail_the_handler(
    context: JobContext, type: str, data: Any, options: dict[str, Any]
) -> None:
    """An argument that cannot be sent to Redis would otherwise fail the worker's batcher."""
    with pytest.raises((TypeError, ValueError)) as caught:
        await context.emit(type, data, **options)
    if type in RESERVED:
        assert type in str(caught.value)


# -- progress ---------------------------------------------------------------------------------


@pytest.mark.fakeredis_only
async def test_progress_is_an_event(make_worker: MakeWorker) -> None:
    async def handler(context: JobContext, payload: Any) -> dict[str, Any]:
        await context.progress(40, "so far")
        await context.progress(20)
        await context.progress(100)
        return {"children": await context.children()}

    harness = make_worker(handler)
    outcome, job_id = await harness.execute()
    assert outcome is Outcome.DONE
    events = [data for type, _, data in await harness.parsed_events(job_id) if type == "progress"]
    assert events == [{"percent": 40, "message": "so far"}, {"percent": 40}, {"percent": 100}]


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(("percent", "expected"), [(5, Outcome.DONE), (101, Outcome.ERROR)])
async def test_sync_handlers_can_emit_progress(
    make_worker: MakeWorker, percent: int, expected: Outcome
) -> None:
    def handler(context: Any, payload: Any) -> dict[str, Any]:
        context.progress(percent)
        return dict(context.children())

    harness = make_worker(handler)
    outcome, job_id = await harness.execute()
    assert outcome is expected
    if expected is Outcome.ERROR:
        assert "0 to 100" in (await harness.error(job_id))["message"]
    else:
        assert ("progress", "worker.handler", {"percent": 5}) in await harness.parsed_events(job_id)
