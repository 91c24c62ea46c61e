"""Cancellation: the handler is asked first, then forced; the job has one terminal event."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from typing import Any

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.options import Backoff
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.errors import JobError, NotNow, TransientError
from sluice.worker.execution.executor import Outcome
from sluice.worker.execution.outcome import WorkerDefaults
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness, job_options

#: Seconds within which a running handler must be notified. The machine may be busy, so the best of
#: several tries counts.
AT_ONCE_S, TRIES = 0.25, 3


def grace(seconds: float) -> WorkerDefaults:
    return WorkerDefaults(cancel_grace_s=seconds, backoff=Backoff(0.01, max_s=0.02))


@pytest.fixture
def hears_once(monkeypatch: pytest.MonkeyPatch) -> WorkerIdentity:
    """A worker that hears of a cancel only by the message: no renewal reports it again."""
    # Each ping is followed by a renewal.
    monkeypatch.setattr("sluice.common.redis.pipelined.PING_INTERVAL_S", 300)
    return WorkerIdentity("workers", "c1", 300_000, 600)


class Inside:
    """A handler that signals its start, then waits for its cancellation in one of several ways."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.context: Any = None

    async def cooperative(self, context: Any, payload: Any) -> Any:
        self.context = context
        self.begun.set()
        await context.wait_for_cancel()
        assert context.cancel_requested
        await asyncio.wait_for(context.wait_for_cancel(), 1)  # returns at once from now on
        return {"partial": [1, 2]}

    async def ignoring(self, context: Any, payload: Any) -> Any:
        await context.emit("token", {"n": 1})
        self.begun.set()
        await asyncio.Event().wait()


async def running(worker: WorkerHarness, inside: Inside, **job: Any) -> str:
    """A job whose handler runs, with a subscribed listener."""
    worker.start()
    await listening(worker)
    [job_id] = await worker.post(**job)
    await asyncio.wait_for(inside.begun.wait(), 5)
    return job_id


async def listening(worker: WorkerHarness) -> None:
    async def subscribed() -> bool:
        [(_, count)] = await worker.client.pubsub_numsub(worker.keys.control)
        return int(count) > 0

    if worker.backend.is_real:
        await eventually(subscribed)


# -- jobs that do not run ---------------------------------------------------------------------


async def test_a_job_canceled_before_its_attempt_does_not_run(make_worker: MakeWorker) -> None:
    """It is queued, or waits for its next attempt."""
    tries: list[str] = []

    async def handler(context: Any, payload: Any) -> None:
        tries.append(context.job_id)
        raise TransientError("busy", retry_after_s=0.2)

    worker = make_worker(handler)
    queued, retried = await worker.post(2)
    assert await worker.cancel(queued) is Answer.CANCELED
    worker.start()
    await worker.last_event(retried, b"retry")
    assert await worker.cancel(retried) is Answer.CANCELED
    await worker.all_acked()
    await eventually(lambda: len(worker.consumer.deferred) == 0)
    assert tries == [retried]
    assert await worker.types(queued) == [b"queued", b"canceled"]
    assert await worker.types(retried) == [b"queued", b"running", b"retry", b"canceled"]


# -- cooperative ------------------------------------------------------------------------------


async def test_a_cooperative_handler_keeps_its_value_when_canceled(
    make_worker: MakeWorker, hears_once: WorkerIdentity
) -> None:
    inside = Inside()
    worker = make_worker(inside.cooperative, identity=hears_once, terms=grace(30.0))
    job_id = await running(worker, inside)
    assert await worker.cancel(job_id, b'{"reason":"enough"}') is Answer.CANCELING
    assert await worker.settled(job_id) == b"canceled"
    assert await worker.result(job_id) == {"partial": [1, 2]}
    assert (await worker.job(job_id))[b"error"] == b""
    events = await worker.parsed_events(job_id)
    assert events[2:4] == [
        ("canceling", "gateway.cancel", {"reason": "enough"}),
        ("canceling", "worker.cancel", {"attempt": 1, "stage": "asked", "grace_s": 30.0}),
    ]
    [(kind, step, data)] = events[4:]
    assert (kind, step) == ("canceled", "worker.cancel")
    assert (data["stage"], data["attempt"]) == ("cooperative", 1)
    await worker.all_acked()
    assert await worker.dead_letters() == []


@pytest.mark.real_redis
async def test_many_jobs_are_canceled_at_once_and_only_those(
    make_worker: MakeWorker, hears_once: WorkerIdentity
) -> None:
    asked: dict[str, float] = {}
    begun: set[str] = set()
    heard: dict[str, float] = {}

    async def handler(context: Any, payload: Any) -> None:
        begun.add(context.job_id)
        while not context.cancel_requested:
            await asyncio.sleep(0.005)
        heard[context.job_id] = time.monotonic()

    worker = make_worker(handler, identity=hears_once, max_inflight=40, terms=grace(30.0))
    worker.start()
    await listening(worker)
    jobs = await worker.post(40)
    await eventually(lambda: len(begun) == 40)
    longest_s: list[float] = []
    for number in range(TRIES):
        chosen = jobs[number::4]
        for job_id in chosen:
            asked[job_id] = time.monotonic()
            await worker.cancel(job_id)
        assert await worker.ended(chosen) == {b"canceled"}
        assert set(heard) == set(asked)
        longest_s.append(max(heard[job_id] - asked[job_id] for job_id in chosen))
    assert min(longest_s) < AT_ONCE_S
    for job_id in jobs[TRIES::4]:
        assert (await worker.job(job_id))[b"status"] == b"running"
        await worker.cancel(job_id)
    assert await worker.ended(jobs) == {b"canceled"}


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("grace_s", [30.0, 0.0], ids=["asked", "forced"])
@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (None, b""),
        (0, b"0"),
        ("", b'""'),
        pytest.param(object(), b"", id="object"),
        (JobError("no"), b""),
        (ValueError("bad"), b""),
        (ConnectionError("away"), b""),
        (NotNow("too late"), b""),
        (SystemExit(1), b""),
    ],
    ids=repr,
)
async def test_however_a_canceled_handler_ends_its_job_is_canceled(
    make_worker: MakeWorker, outcome: Any, result: bytes, grace_s: float
) -> None:
    """A value is kept if it is JSON; errors are neither retried nor dead-lettered."""
    inside = Inside()

    async def handler(context: Any, payload: Any) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await (inside.cooperative if grace_s else inside.ignoring)(context, payload)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    worker = make_worker(handler, terms=grace(grace_s))
    job_id = await running(worker, inside, max_attempts=5)
    worker.control.on_message(job_id.encode())
    assert await worker.settled(job_id) == b"canceled"
    assert (await worker.job(job_id))[b"result"] == result
    assert await worker.ends(job_id) == [b"canceled"]
    assert await worker.dead_letters() == []


@pytest.mark.parametrize("checks", [True, False])
async def test_a_sync_handler_can_check_for_a_cancel(make_worker: MakeWorker, checks: bool) -> None:
    """A handler that does not check is abandoned."""
    begun, release = threading.Event(), threading.Event()

    def handler(context: Any, payload: Any) -> str:
        begun.set()
        until = time.monotonic() + 10
        while checks and not context.cancel_requested and time.monotonic() < until:
            time.sleep(0.002)
        assert context.cancel_requested or release.wait(30)
        return "stopped in good order"

    worker = make_worker(handler, terms=grace(30.0 if checks else 0.03))
    worker.start()
    await listening(worker)
    try:
        [job_id] = await worker.post()
        await eventually(begun.is_set)
        await worker.cancel(job_id)
        assert await worker.settled(job_id) == b"canceled"
        await eventually(lambda: worker.slots.busy == 0)
    finally:
        release.set()
    result = b'"stopped in good order"' if checks else b""
    assert (await worker.job(job_id))[b"result"] == result


# -- forced -----------------------------------------------------------------------------------


async def test_a_handler_that_does_not_check_is_canceled_later(make_worker: MakeWorker) -> None:
    inside = Inside()
    worker = make_worker(inside.ignoring, terms=grace(0.05))
    job_id = await running(worker, inside)

    async def token_is_written() -> bool:
        return any(kind == "token" for kind, _, _ in await worker.parsed_events(job_id))

    await eventually(token_is_written)  # an event is written after `emit` has returned
    assert await worker.cancel(job_id) is Answer.CANCELING
    assert await worker.cancel(job_id) is Answer.CANCELING  # reported once nevertheless
    assert await worker.settled(job_id) == b"canceled"
    events = await worker.parsed_events(job_id)
    assert [(kind, step, data.get("stage")) for kind, step, data in events] == [
        ("queued", "gateway.enqueue", None),
        ("running", "worker.start", None),
        ("token", "worker.handler", None),
        ("canceling", "gateway.cancel", None),
        ("canceling", "worker.cancel", "asked"),
        ("canceling", "worker.cancel", "forced"),
        ("canceled", "worker.cancel", "forced"),
    ]
    assert (await worker.job(job_id))[b"result"] == b""
    await worker.all_acked()


# -- missed messages --------------------------------------------------------------------------


async def test_a_renewal_reports_a_cancel_whose_message_was_lost(make_worker: MakeWorker) -> None:
    inside = Inside()
    short = WorkerIdentity("workers", "c1", 300, 600)
    worker = make_worker(inside.cooperative, identity=short, terms=grace(30.0))
    worker.start(listen=False)
    [job_id] = await worker.post()
    await asyncio.wait_for(inside.begun.wait(), 5)
    await worker.cancel(job_id)
    assert await worker.settled(job_id) == b"canceled"
    events = (await worker.parsed_events(job_id))[3:]
    assert [data.get("stage") for _, _, data in events] == ["asked", "cooperative"]


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_missed_cancels_are_found_after_a_reconnect(make_worker: MakeWorker) -> None:
    """Although the lease is half a minute: a new subscription renews at once."""
    inside = Inside()
    worker = make_worker(inside.cooperative, terms=grace(30.0))
    job_id = await running(worker, inside)
    assert await worker.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
    await worker.cancel(job_id)
    before = time.monotonic()
    assert await worker.settled(job_id) == b"canceled"
    assert time.monotonic() - before < 5
    inside.begun.clear()
    [second] = await worker.post()
    await asyncio.wait_for(inside.begun.wait(), 5)
    await listening(worker)
    await worker.cancel(second)
    assert await worker.settled(second) == b"canceled"


@pytest.mark.fakeredis_only
async def test_a_cancel_received_before_the_begin_is_applied(make_worker: MakeWorker) -> None:
    """The reply to BEGIN and the message use two connections: either may come first."""
    worker = make_worker(Inside().cooperative, terms=grace(30.0))
    attempt = await worker.attempt()
    assert await worker.cancel(attempt.lease.job_id) is Answer.CANCELING
    worker.control.on_message(attempt.lease.job_id.encode())
    working = asyncio.create_task(worker.executor.run(attempt))
    try:
        await asyncio.wait({working}, timeout=2)
        assert working.done()
        assert working.result() is Outcome.CANCELED
    finally:
        working.cancel()


@pytest.mark.fakeredis_only
async def test_unknown_messages_on_the_control_channel_are_ignored(make_worker: MakeWorker) -> None:
    inside = Inside()
    worker = make_worker(inside.cooperative)
    job_id = await running(worker, inside)
    for message in (b"", b"\xff\xfe", b"nobody", b"x" * 100_000):
        worker.control.on_message(message)
    assert not inside.context.cancel_requested
    # A message without the flag is effective nevertheless.
    await worker.client.publish(worker.keys.control, job_id)
    assert await worker.settled(job_id) == b"canceled"


# -- races ------------------------------------------------------------------------------------


async def test_a_cancel_while_the_job_ends_gives_one_terminal_event(
    make_worker: MakeWorker,
) -> None:
    async def handler(context: Any, payload: Any) -> str:
        await asyncio.sleep(payload["n"] / 2000)
        return "ended"

    worker = make_worker(handler, max_inflight=16, terms=grace(0.005))
    worker.start()
    await listening(worker)

    async def race(number: int) -> str:
        [job_id] = await worker.post(payload=json.dumps({"n": number}).encode())
        await asyncio.sleep((number % 5) / 1000)
        await worker.cancel(job_id)
        return job_id

    jobs = await asyncio.gather(*(race(number) for number in range(40)))
    assert await worker.ended(jobs) <= {b"done", b"canceled"}
    await worker.all_acked()
    for job_id in jobs:
        [end] = await worker.ends(job_id)
        assert end == (await worker.types(job_id))[-1] == (await worker.job(job_id))[b"status"]
    assert await worker.without_ttl() == []
    await eventually(lambda: worker.slots.free == 16)


async def test_a_failure_after_an_unnoticed_cancel_is_not_retried(make_worker: MakeWorker) -> None:
    """RETRY finds the requested cancel: the job ends instead of waiting."""
    worker: WorkerHarness

    async def handler(context: Any, payload: Any) -> None:
        await worker.cancel(context.job_id)
        raise ConnectionError("away")

    worker = make_worker(handler)
    worker.start(listen=False)
    job_id = await worker.run_job(b"canceled")
    assert await worker.types(job_id) == [b"queued", b"running", b"canceling", b"canceled"]
    await worker.all_acked()
    assert len(worker.consumer.deferred) == 0


@pytest.mark.fakeredis_only
async def test_a_timeout_within_the_grace_gives_one_terminal_event(make_worker: MakeWorker) -> None:
    inside = Inside()
    worker = make_worker(inside.ignoring, terms=grace(0.1))
    job_id = await running(worker, inside, options=job_options(0.1))
    await worker.cancel(job_id)
    assert await worker.settled(job_id) in (b"error", b"canceled")
    await eventually(lambda: worker.slots.busy == 0)
    assert len(await worker.ends(job_id)) == 1


@pytest.mark.fakeredis_only
async def test_a_cancel_during_shutdown_ends_the_job(make_worker: MakeWorker) -> None:
    """The cancel was requested but not forced when the worker stops: the job ends as canceled."""
    inside = Inside()
    worker = make_worker(inside.ignoring, terms=grace(60.0))
    job_id = await running(worker, inside)
    await worker.cancel(job_id)
    worker.control.on_message(job_id.encode())
    await worker.stop(0.01)
    assert await worker.settled(job_id) == b"canceled"
    assert await worker.ends(job_id) == [b"canceled"]
    assert await worker.pending() == 0


async def test_a_lost_job_is_not_canceled_by_its_old_attempt(make_worker: MakeWorker) -> None:
    worker = make_worker(Inside().ignoring, terms=grace(0.05))
    attempt = await worker.attempt()
    working = asyncio.create_task(worker.executor.run(attempt))
    await worker.last_event(attempt.lease.job_id, b"token")
    heir = await worker.take_over(attempt.lease)
    before = await worker.events(attempt.lease.job_id)
    worker.executor.cancel(attempt.lease.job_id)
    assert await asyncio.wait_for(working, 5) is Outcome.LOST
    assert await worker.events(attempt.lease.job_id) == before
    assert (await worker.finish(heir)) is Answer.OK
