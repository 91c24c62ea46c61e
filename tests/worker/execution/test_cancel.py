"""Cancellation: the handler is asked first, then forced; the job has one terminal event."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.jobs.options import Backoff
from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker, job_options, registry_of
from worker.errors import JobError, TransientError
from worker.execution.executor import Outcome
from worker.execution.outcome import WorkerDefaults

#: Seconds within which a running handler must be notified. The machine may be busy, so the best of
#: several tries counts.
AT_ONCE_S, TRIES = 0.25, 3
ENDS = {b"done", b"error", b"canceled"}


def defaults_with_grace(grace_s: float, **rest: Any) -> WorkerDefaults:
    return WorkerDefaults(cancel_grace_s=grace_s, backoff=Backoff(0.01, max_s=0.02), **rest)


async def ends(rigged: Rig, job_id: str) -> list[bytes]:
    return [kind for kind in await rigged.types(job_id) if kind in ENDS]


@pytest.fixture
def hears_once(monkeypatch: pytest.MonkeyPatch) -> WorkerIdentity:
    """A worker that hears of a cancel only by the message: no renewal reports it again."""
    monkeypatch.setattr(
        "common.redis.pipelined.PING_INTERVAL_S", 300
    )  # each is followed by a renewal
    return WorkerIdentity("workers", "c1", 300_000, 600)


class Inside:
    """A handler that signals its start, then waits for its cancellation in one of several ways."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.context: Any = None
        self.noticed_s: list[float] = []

    async def cooperative(self, context: Any, payload: Any) -> Any:
        self.context = context
        self.begun.set()
        await context.wait_for_cancel()
        self.noticed_s.append(time.monotonic())
        assert context.cancel_requested
        return payload.get("value", {"partial": [1, 2]})

    async def ignoring(self, context: Any, payload: Any) -> Any:
        self.context = context
        await context.emit("token", {"n": 1})
        self.begun.set()
        await asyncio.Event().wait()


async def running(rigged: Rig, inside: Inside, **job: Any) -> str:
    """A job whose handler runs, with a subscribed listener."""
    rigged.start()
    if rigged.backend.is_real:
        await listening(rigged)
    [job_id] = await rigged.post(**job)
    await asyncio.wait_for(inside.begun.wait(), 5)
    return job_id


async def listening(rigged: Rig) -> None:
    async def subscribed() -> bool:
        [(_, count)] = await rigged.client.pubsub_numsub(rigged.keys.control)
        return int(count) > 0

    await eventually(subscribed)


# -- jobs that do not run ---------------------------------------------------------------------


async def test_a_queued_job_never_runs(rig: RigMaker) -> None:
    ran: list[str] = []
    rigged = rig(lambda context, payload: ran.append(context.job_id))
    await rigged.group()
    first, second = await rigged.post(2)
    assert await rigged.cancel(first) is Answer.CANCELED
    rigged.start()
    assert await rigged.settled(second) == b"done"
    await rigged.all_acked()
    assert ran == [second]
    assert await rigged.types(first) == [b"queued", b"canceled"]
    assert await rigged.cancel(first) is Answer.ALREADY


async def test_a_scheduled_job_is_never_promoted(rig: RigMaker) -> None:
    rigged = rig()
    [job_id] = await rigged.post(delay_ms=200, schedule_limit=10)
    assert await rigged.cancel(job_id) is Answer.CANCELED
    rigged.start()
    [later] = await rigged.post(delay_ms=250, schedule_limit=10)
    assert await rigged.settled(later) == b"done"
    assert await rigged.types(job_id) == [b"queued", b"scheduled", b"canceled"]
    assert await rigged.client.zcard(rigged.keys.scheduled) == 0


async def test_a_job_that_waits_for_its_next_attempt_is_canceled(rig: RigMaker) -> None:
    tries: list[int] = []

    async def handler(context: Any, payload: Any) -> None:
        tries.append(context.attempt)
        raise TransientError("busy", retry_after_s=0.2)

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post()

    async def waits() -> bool:
        return (await rigged.types(job_id))[-1] == b"retry"

    await eventually(waits)
    assert await rigged.cancel(job_id) is Answer.CANCELED
    assert await rigged.pending() == 0
    await eventually(lambda: len(rigged.consumer.deferred) == 0)
    assert tries == [1]
    assert await rigged.types(job_id) == [b"queued", b"running", b"retry", b"canceled"]


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_a_job_whose_worker_died_is_not_run_again(rig: RigMaker, dies: str) -> None:
    """The worker that claims it ends it."""
    rigged = rig()
    lease = await rigged.running()
    if dies == "before":
        await rigged.expire(lease)
    assert await rigged.cancel(lease.job_id) is Answer.CANCELING
    if dies == "after":
        await rigged.expire(lease)
    rigged.start()
    rigged.consumer.deferred.add(lease.message_id)
    assert await rigged.settled(lease.job_id) == b"canceled"
    assert await rigged.types(lease.job_id) == [b"queued", b"running", b"canceling", b"canceled"]
    await rigged.all_acked()


# -- cooperative ------------------------------------------------------------------------------


async def test_a_cooperative_handler_keeps_its_value_when_canceled(
    rig: RigMaker, hears_once: WorkerIdentity
) -> None:
    inside = Inside()
    rigged = rig(inside.cooperative, identity=hears_once, terms=defaults_with_grace(30.0))
    job_id = await running(rigged, inside)
    took_s: list[float] = []
    while True:
        before = time.monotonic()
        assert await rigged.cancel(job_id, b'{"reason":"enough"}') is Answer.CANCELING
        assert await rigged.settled(job_id) == b"canceled"
        took_s.append(inside.noticed_s[-1] - before)
        if not rigged.backend.is_real or took_s[-1] < AT_ONCE_S or len(took_s) == TRIES:
            break
        inside.begun.clear()
        [job_id] = await rigged.post()
        await asyncio.wait_for(inside.begun.wait(), 10)
    if rigged.backend.is_real:
        assert min(took_s) < AT_ONCE_S
    record = await rigged.job(job_id)
    assert json.loads(record[b"result"]) == {"partial": [1, 2]}
    assert record[b"error"] == b""
    story = await rigged.parsed_events(job_id)
    assert story[2:4] == [
        ("canceling", "gateway.cancel", {"reason": "enough"}),
        ("canceling", "worker.cancel", {"attempt": 1, "stage": "asked", "grace_s": 30.0}),
    ]
    kind, step, data = story[4]
    assert (kind, step, data["stage"], data["attempt"]) == (
        "canceled", "worker.cancel", "cooperative", 1,
    )  # fmt: skip
    assert len(story) == 5
    await rigged.all_acked()
    assert await rigged.dead_letters() == []


async def test_many_jobs_are_canceled_at_once_and_only_those(
    real_rig: RigMaker, hears_once: WorkerIdentity
) -> None:
    asked: dict[str, float] = {}
    begun: set[str] = set()
    heard: dict[str, float] = {}

    async def handler(context: Any, payload: Any) -> None:
        begun.add(context.job_id)
        while not context.cancel_requested:
            await asyncio.sleep(0.005)
        heard[context.job_id] = time.monotonic()

    rigged = real_rig(
        handler, identity=hears_once, max_inflight=40, terms=defaults_with_grace(30.0)
    )
    rigged.start()
    await listening(rigged)
    jobs = await rigged.post(40)
    await eventually(lambda: len(begun) == 40)
    longest_s: list[float] = []
    for number in range(TRIES):
        chosen = jobs[number::4]
        for job_id in chosen:
            asked[job_id] = time.monotonic()
            await rigged.cancel(job_id)
        assert await rigged.ended(chosen) == {b"canceled"}
        assert set(heard) == set(asked)
        longest_s.append(max(heard[job_id] - asked[job_id] for job_id in chosen))
    assert min(longest_s) < AT_ONCE_S
    for job_id in jobs[TRIES::4]:
        assert (await rigged.job(job_id))[b"status"] == b"running"
        await rigged.cancel(job_id)
    assert await rigged.ended(jobs) == {b"canceled"}


@pytest.mark.parametrize(
    ("value", "result"),
    [(b'{"value":null}', b""), (b'{"value":0}', b"0"), (b'{"value":""}', b'""')],
)
async def test_the_returned_value_is_kept(fake_rig: RigMaker, value: bytes, result: bytes) -> None:
    inside = Inside()
    rigged = fake_rig(inside.cooperative)
    job_id = await running(rigged, inside, payload=value)
    rigged.control.on_message(job_id.encode())
    assert await rigged.settled(job_id) == b"canceled"
    assert (await rigged.job(job_id))[b"result"] == result


@pytest.mark.parametrize(
    "error", [JobError("no"), ValueError("bad"), ConnectionError("away"), SystemExit(1)]
)
async def test_a_handler_that_fails_when_asked_to_stop_is_canceled(
    fake_rig: RigMaker, error: BaseException
) -> None:
    inside = Inside()

    async def handler(context: Any, payload: Any) -> None:
        await inside.cooperative(context, payload)
        raise error

    rigged = fake_rig(handler)
    job_id = await running(rigged, inside, max_attempts=5)
    rigged.control.on_message(job_id.encode())
    assert await rigged.settled(job_id) == b"canceled"
    assert await ends(rigged, job_id) == [b"canceled"]
    assert await rigged.dead_letters() == []


async def test_a_value_that_is_not_json_is_dropped(fake_rig: RigMaker) -> None:
    inside = Inside()

    async def handler(context: Any, payload: Any) -> object:
        await inside.cooperative(context, payload)
        return object()

    rigged = fake_rig(handler)
    job_id = await running(rigged, inside)
    rigged.control.on_message(job_id.encode())
    assert await rigged.settled(job_id) == b"canceled"
    assert (await rigged.job(job_id))[b"result"] == b""


async def test_a_sync_handler_can_check_for_a_cancel(rig: RigMaker) -> None:
    begun, seen = threading.Event(), []

    def polling(context: Any, payload: Any) -> str:
        begun.set()
        until = time.monotonic() + 10
        while not context.cancel_requested and time.monotonic() < until:
            time.sleep(0.002)
        seen.append(context.cancel_requested)
        return "stopped in good order"

    rigged = rig(polling, terms=defaults_with_grace(30.0))
    rigged.start()
    if rigged.backend.is_real:
        await listening(rigged)
    [job_id] = await rigged.post()
    await eventually(begun.is_set)
    await rigged.cancel(job_id)
    assert await rigged.settled(job_id) == b"canceled"
    assert seen == [True]
    assert (await rigged.job(job_id))[b"result"] == b'"stopped in good order"'


async def test_wait_for_cancel_returns_at_once_after_a_cancel(fake_rig: RigMaker) -> None:
    go = asyncio.Event()

    async def handler(context: Any, payload: Any) -> str:
        await go.wait()
        assert context.cancel_requested
        await asyncio.wait_for(context.wait_for_cancel(), 1)
        await asyncio.wait_for(context.wait_for_cancel(), 1)
        return "twice"

    rigged = fake_rig(handler)
    attempt = await rigged.attempt()
    working = asyncio.create_task(rigged.executor.run(attempt))
    await asyncio.sleep(0)
    rigged.executor.cancel(attempt.lease.job_id)
    go.set()
    assert await asyncio.wait_for(working, 5) is Outcome.CANCELED
    assert (await rigged.job(attempt.lease.job_id))[b"result"] == b'"twice"'


# -- forced -----------------------------------------------------------------------------------


async def test_a_handler_that_does_not_check_is_canceled_later(rig: RigMaker) -> None:
    inside = Inside()
    rigged = rig(inside.ignoring, terms=defaults_with_grace(0.05))
    job_id = await running(rigged, inside)
    assert await rigged.cancel(job_id) is Answer.CANCELING
    assert await rigged.cancel(job_id) is Answer.CANCELING  # reported once nevertheless
    assert await rigged.settled(job_id) == b"canceled"
    story = await rigged.parsed_events(job_id)
    assert [(kind, step, data.get("stage")) for kind, step, data in story] == [
        ("queued", "gateway.enqueue", None),
        ("running", "worker.start", None),
        ("token", "worker.handler", None),
        ("canceling", "gateway.cancel", None),
        ("canceling", "worker.cancel", "asked"),
        ("canceling", "worker.cancel", "forced"),
        ("canceled", "worker.cancel", "forced"),
    ]
    assert (await rigged.job(job_id))[b"result"] == b""
    await rigged.all_acked()


async def test_a_value_returned_after_a_forced_cancel_is_kept(fake_rig: RigMaker) -> None:
    begun = asyncio.Event()

    async def handler(context: Any, payload: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"rescued": True}

    rigged = fake_rig(handler, terms=defaults_with_grace(0.0))
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(begun.wait(), 5)
    rigged.control.on_message(job_id.encode())
    assert await rigged.settled(job_id) == b"canceled"
    assert json.loads((await rigged.job(job_id))[b"result"]) == {"rescued": True}


async def test_a_handler_that_ignores_its_cancellation_is_abandoned(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.execution.attempt.HARD_KILL_S", 0.03)
    begun, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(context: Any, payload: Any) -> Any:
        if payload.get("fine"):
            return 1
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return {"too": "late"}

    rigged = rig(handler, max_inflight=1, terms=defaults_with_grace(0.02))
    rigged.start()
    try:
        [job_id] = await rigged.post()
        await asyncio.wait_for(begun.wait(), 5)
        await rigged.cancel(job_id)
        assert await rigged.settled(job_id) == b"canceled"
        [fine] = await rigged.post(payload=b'{"fine":1}')
        assert await rigged.settled(fine) == b"done"
        before = await rigged.events(job_id)
    finally:
        let_go.set()
    await asyncio.wait_for(ended.wait(), 5)
    await eventually(lambda: rigged.slots.busy == 0)
    assert await rigged.events(job_id) == before
    assert (await rigged.job(job_id))[b"result"] == b""
    assert await ends(rigged, job_id) == [b"canceled"]


async def test_a_sync_handler_that_does_not_check_is_abandoned(rig: RigMaker) -> None:
    begun, release = threading.Event(), threading.Event()

    def blocking(context: Any, payload: Any) -> str:
        begun.set()
        assert release.wait(30)
        return "late"

    rigged = rig(blocking, terms=defaults_with_grace(0.03))
    rigged.start()
    try:
        [job_id] = await rigged.post()
        await eventually(begun.is_set)
        await rigged.cancel(job_id)
        assert await rigged.settled(job_id) == b"canceled"
        await eventually(lambda: rigged.slots.busy == 0)
    finally:
        release.set()
    assert (await rigged.job(job_id))[b"result"] == b""


# -- missed messages --------------------------------------------------------------------------


async def test_a_renewal_reports_a_cancel_whose_message_was_lost(rig: RigMaker) -> None:
    inside = Inside()
    short = WorkerIdentity("workers", "c1", 300, 600)
    rigged = rig(inside.cooperative, identity=short, terms=defaults_with_grace(30.0))
    rigged.start(listen=False)
    [job_id] = await rigged.post()
    await asyncio.wait_for(inside.begun.wait(), 5)
    await rigged.cancel(job_id)
    assert await rigged.settled(job_id) == b"canceled"
    assert [data.get("stage") for _, _, data in (await rigged.parsed_events(job_id))[3:]] == [
        "asked",
        "cooperative",
    ]


@pytest.mark.one_server
async def test_missed_cancels_are_found_after_a_reconnect(
    real_rig: RigMaker,
) -> None:
    """Although the lease is half a minute: a new subscription renews at once."""
    inside = Inside()
    rigged = real_rig(inside.cooperative, terms=defaults_with_grace(30.0))
    job_id = await running(rigged, inside)
    assert await rigged.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
    await rigged.cancel(job_id)
    before = time.monotonic()
    assert await rigged.settled(job_id) == b"canceled"
    assert time.monotonic() - before < 5
    inside.begun.clear()
    [second] = await rigged.post()
    await asyncio.wait_for(inside.begun.wait(), 5)
    await listening(rigged)
    await rigged.cancel(second)
    assert await rigged.settled(second) == b"canceled"


async def test_a_cancel_received_before_the_begin_is_applied(
    fake_rig: RigMaker,
) -> None:
    """The reply to BEGIN and the message use two connections: either may come first."""
    inside = Inside()
    rigged = fake_rig(inside.cooperative, terms=defaults_with_grace(30.0))
    attempt = await rigged.attempt()
    assert await rigged.cancel(attempt.lease.job_id) is Answer.CANCELING
    rigged.control.on_message(attempt.lease.job_id.encode())
    working = asyncio.create_task(rigged.executor.run(attempt))
    try:
        await asyncio.wait({working}, timeout=2)
        assert working.done()
        assert working.result() is Outcome.CANCELED
    finally:
        working.cancel()


async def test_unknown_messages_on_the_control_channel_are_ignored(fake_rig: RigMaker) -> None:
    inside = Inside()
    rigged = fake_rig(inside.cooperative)
    job_id = await running(rigged, inside)
    for message in (b"", b"\xff\xfe", b"nobody", b"x" * 100_000):
        rigged.control.on_message(message)
    assert not inside.context.cancel_requested
    await rigged.client.publish(
        rigged.keys.control, job_id
    )  # without the flag: effective nevertheless
    assert await rigged.settled(job_id) == b"canceled"


# -- races ------------------------------------------------------------------------------------


async def test_a_cancel_while_the_job_ends_gives_one_terminal_event(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> str:
        await asyncio.sleep(payload["n"] / 2000)
        return "ended"

    rigged = rig(handler, max_inflight=16, terms=defaults_with_grace(0.005))
    rigged.start()
    if rigged.backend.is_real:
        await listening(rigged)

    async def race(number: int) -> str:
        [job_id] = await rigged.post(payload=json.dumps({"n": number}).encode())
        await asyncio.sleep((number % 5) / 1000)
        await rigged.cancel(job_id)
        return job_id

    jobs = await asyncio.gather(*(race(number) for number in range(40)))
    assert await rigged.ended(jobs) <= {b"done", b"canceled"}
    await rigged.all_acked()
    for job_id in jobs:
        [end] = await ends(rigged, job_id)
        assert end == (await rigged.types(job_id))[-1] == (await rigged.job(job_id))[b"status"]
    assert await rigged.without_ttl() == []
    await eventually(lambda: rigged.slots.free == 16)


async def test_a_cancel_while_the_end_is_reported(fake_rig: RigMaker) -> None:
    rigged = fake_rig(lambda context, payload: "value")
    finish, entered, held = rigged.executor._store.finish, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        entered.set()
        await held.wait()
        return await finish(*args, **rest)

    rigged.executor._store.finish = slow  # type: ignore[method-assign]
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(entered.wait(), 5)
    await rigged.cancel(job_id)
    rigged.control.on_message(job_id.encode())
    held.set()
    assert await rigged.settled(job_id) == b"done"
    assert await rigged.types(job_id) == [b"queued", b"running", b"canceling", b"done"]


async def test_a_failure_after_an_unnoticed_cancel_is_not_retried(rig: RigMaker) -> None:
    """RETRY finds the requested cancel: the job ends instead of waiting."""
    rigged: Rig

    async def handler(context: Any, payload: Any) -> None:
        await rigged.cancel(context.job_id)
        raise ConnectionError("away")

    rigged = rig(handler)
    rigged.start(listen=False)
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"canceled"
    assert await rigged.types(job_id) == [b"queued", b"running", b"canceling", b"canceled"]
    await rigged.all_acked()
    assert len(rigged.consumer.deferred) == 0


async def test_a_timeout_within_the_grace_gives_one_terminal_event(fake_rig: RigMaker) -> None:
    inside = Inside()
    rigged = fake_rig(inside.ignoring, terms=defaults_with_grace(0.1))
    job_id = await running(rigged, inside, options=job_options(0.1))
    await rigged.cancel(job_id)
    assert await rigged.settled(job_id) in (b"error", b"canceled")
    await eventually(lambda: rigged.slots.busy == 0)
    assert len(await ends(rigged, job_id)) == 1


async def test_a_cancel_during_shutdown_ends_the_job(fake_rig: RigMaker) -> None:
    """The cancel was requested but not forced when the worker stops: the job ends as canceled."""
    inside = Inside()
    rigged = fake_rig(inside.ignoring, terms=defaults_with_grace(60.0))
    job_id = await running(rigged, inside)
    await rigged.cancel(job_id)
    rigged.control.on_message(job_id.encode())
    await rigged.stop(0.01)
    assert await rigged.settled(job_id) == b"canceled"
    assert await ends(rigged, job_id) == [b"canceled"]
    assert await rigged.pending() == 0


async def test_a_lost_job_is_not_canceled_by_its_old_attempt(rig: RigMaker) -> None:
    inside = Inside()
    rigged = rig(inside.ignoring, terms=defaults_with_grace(0.05))
    attempt = await rigged.attempt()
    working = asyncio.create_task(rigged.executor.run(attempt))
    await asyncio.wait_for(inside.begun.wait(), 5)

    async def said() -> bool:
        return (await rigged.types(attempt.lease.job_id))[-1] == b"token"

    await eventually(said)
    heir = await rigged.take_over(attempt.lease)
    before = await rigged.events(attempt.lease.job_id)
    rigged.executor.cancel(attempt.lease.job_id)
    assert await asyncio.wait_for(working, 5) is Outcome.LOST
    assert await rigged.events(attempt.lease.job_id) == before
    assert (await rigged.finish(heir)) is Answer.OK


async def test_handlers_cannot_emit_the_canceling_event(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.emit("canceling", {})

    rigged = fake_rig(registry=registry_of(handler))
    _, job_id = await rigged.execute()
    assert (await rigged.error(job_id))["kind"] == "ValueError"
