"""Shutdown of a worker: running jobs may finish, the rest is released at once."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest

import sluice.worker.monitoring.shutdown
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.errors import TransientError
from sluice.worker.execution.executor import Outcome
from sluice.worker.monitoring.shutdown import StopSignals, drain
from tests.support.servers import Backend
from tests.support.store.jobs import Proxy
from tests.support.waiting import eventually
from tests.support.worker.handlers import Gate, Stubborn
from tests.support.worker.harness import MakeWorker, WorkerHarness, job_options, registry_of, within

HEIR = WorkerIdentity("workers", "heir", 30_000, 600)
#: Less than a third of a lease, however slow this machine is.
SOON_S = 9


@pytest.fixture
def gate() -> Gate:
    return Gate(closed=True)


async def running(harness: WorkerHarness, **job: Any) -> str:
    harness.start()
    [job_id] = await harness.post(**job)
    await eventually(lambda: harness.executor.running)
    await asyncio.sleep(0)
    return job_id


async def stop(harness: WorkerHarness, grace_s: float = 0.0) -> None:
    await within(15, harness.stop(grace_s))


async def ended_soon(harness: WorkerHarness, *jobs: str) -> None:
    """Start a worker that takes over jobs, long before their leases are over."""
    before = time.monotonic()
    harness.start(recover=True)
    assert await harness.ended(jobs) == {b"done"}
    assert time.monotonic() - before < SOON_S
    await harness.all_acked()


@pytest.mark.parametrize("slots", [1, 2], ids=["all-busy", "one-free"])
async def test_a_released_job_continues_in_another_worker_at_once(
    make_worker: MakeWorker, gate: Gate, slots: int
) -> None:
    """Although the lease is half a minute, and the job has only one attempt. Also when every slot
    is busy and the reader waits for one."""
    harness, heir = make_worker(gate, max_inflight=slots), make_worker(gate, identity=HEIR)
    job_id = await running(harness, max_attempts=1)
    await stop(harness, 0.05)
    assert (await harness.job(job_id))[b"status"] == b"queued"
    events = await harness.parsed_events(job_id)
    assert [kind for kind, _, _ in events] == ["queued", "running", "released"]
    assert (events[-1][1], events[-1][2]["attempt"]) == ("worker.release", 1)
    assert await harness.pending() == 1
    gate.open.set()
    await ended_soon(heir, job_id)
    assert await heir.result(job_id) == 2
    assert await heir.ends(job_id) == [b"done"]


@pytest.mark.parametrize("fails", [False, True])
async def test_jobs_that_end_in_time_are_not_released(
    make_worker: MakeWorker, gate: Gate, fails: bool
) -> None:
    """A job that fails meanwhile is retried by another worker."""

    async def handler(context: Any, payload: Any) -> None:
        await gate(context, payload)
        if fails and context.attempt == 1:
            raise TransientError("once", retry_after_s=0.1)

    harness = make_worker(handler)
    harness.start()
    jobs = await harness.post(3)
    await eventually(lambda: gate.now == 3)
    stopping = asyncio.create_task(harness.stop(60))
    await eventually(lambda: harness.slots.interrupted)
    gate.open.set()
    await within(15, stopping)  # type: ignore[arg-type]
    for job_id in jobs:
        end = b"retry" if fails else b"done"
        assert await harness.types(job_id) == [b"queued", b"running", end]
    assert await harness.pending() == (3 if fails else 0)
    await ended_soon(make_worker(handler, identity=HEIR), *jobs)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    "outcome",
    [None, RuntimeError("interrupted"), ConnectionError("torn"), SystemExit(1), "just in time"],
    ids=repr,
)
async def test_how_a_handler_ends_when_it_is_canceled_by_the_shutdown(
    make_worker: MakeWorker, outcome: Any
) -> None:
    """Libraries may turn a cancellation into another exception: the job is released, with its last
    events. A handler that returns a value has finished."""

    async def handler(context: Any, payload: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await context.emit("farewell", {})
            if outcome is None:
                raise
            if isinstance(outcome, BaseException):
                raise outcome from None
            return outcome

    harness = make_worker(handler)
    job_id = await running(harness, max_attempts=1)
    await stop(harness)
    end = b"done" if isinstance(outcome, str) else b"released"
    assert await harness.types(job_id) == [b"queued", b"running", b"farewell", end]
    assert await harness.dead_letters() == []
    if end == b"done":
        assert await harness.result(job_id) == outcome


async def test_a_job_is_released_if_its_handler_ignores_the_cancel(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.slots.CANCEL_TIMEOUT_S", 0.05)
    stubborn = Stubborn()
    harness = make_worker(stubborn)
    try:
        job_id = await running(harness, max_attempts=1)
        await harness.last_event(job_id, b"partial")
        await stop(harness)
        assert await harness.types(job_id) == [b"queued", b"running", b"partial", b"released"]
        before = await harness.snapshot()
    finally:
        stubborn.released.set()
    await eventually(lambda: stubborn.ended)
    await eventually(lambda: not harness.executor._running)
    assert await harness.snapshot() == before


@pytest.mark.fakeredis_only
async def test_many_releases_without_redis_run_concurrently(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release is tried for a while; all of them at the same time."""
    monkeypatch.setattr("sluice.worker.queue.slots.CANCEL_TIMEOUT_S", 0.05)
    monkeypatch.setattr("sluice.worker.execution.executor.RELEASE_TIMEOUT_S", 60.0)
    stubborn, tried, all_tried = Stubborn(), 0, asyncio.Event()

    async def away(*args: Any, **rest: Any) -> Any:
        nonlocal tried
        tried += 1
        if tried == 8:
            all_tried.set()
        await all_tried.wait()  # not one after the other
        raise StoreUnavailable("away")

    harness = make_worker(stubborn, max_inflight=8)
    harness.start()
    try:
        await harness.post(8)
        await eventually(lambda: len(stubborn.begun) == 8)
        harness.executor._store.release = away  # type: ignore[method-assign]
        await stop(harness)
        assert tried == 8
    finally:
        stubborn.released.set()


@pytest.mark.parametrize("grace_s", [0.0, 60.0])
async def test_waiting_messages_are_released_at_once(
    make_worker: MakeWorker, gate: Gate, grace_s: float
) -> None:
    """Messages in the wait queue, and retries that are not due: another worker takes them. The
    grace period is for running jobs."""

    async def flaky(context: Any, payload: Any) -> None:
        if context.attempt == 1:
            raise TransientError("once", retry_after_s=0.5)

    registry, others = registry_of(gate, "chat"), registry_of(Gate(), "chat")
    for each in (registry, others):
        each.add("plan", flaky)
    harness = make_worker(registry=registry, max_inflight=3, task_limits={"chat": 1})
    heir = make_worker(registry=others, identity=HEIR, max_inflight=3)
    harness.start()
    [first, *chats], [plan] = await harness.post(4, task="chat"), await harness.post(task="plan")
    await eventually(
        lambda: harness.consumer.waiting.total == 3 and len(harness.consumer.deferred) == 1
    )
    stopping = asyncio.create_task(harness.stop(grace_s))
    try:
        heir.start(recover=True)
        before = time.monotonic()
        assert await heir.ended([*chats, plan]) == {b"done"}
        assert time.monotonic() - before < SOON_S
        if grace_s:
            assert (await heir.job(first))[b"status"] == b"running"
    finally:
        gate.open.set()
        await within(15, stopping)  # type: ignore[arg-type]
    assert await heir.settled(first) == b"done"
    await heir.all_acked()


async def test_a_job_whose_begin_is_in_progress_is_not_left_running(
    make_worker: MakeWorker,
) -> None:
    """Redis has begun it and the reply is missing: otherwise it would wait for a whole lease."""
    harness = make_worker(lambda context, payload: None)
    begin, begun, held = harness.claimer._store.begin, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        outcomes = await begin(*args, **rest)
        begun.set()
        await held.wait()
        return outcomes

    harness.claimer._store.begin = slow  # type: ignore[method-assign]
    harness.start()
    [job_id] = await harness.post(max_attempts=1)
    await asyncio.wait_for(begun.wait(), 10)
    stopping = asyncio.create_task(harness.stop(0.0))
    asyncio.get_running_loop().call_later(0.2, held.set)
    await within(15, stopping)  # type: ignore[arg-type]
    assert (await harness.job(job_id))[b"status"] in (b"queued", b"done")


@pytest.mark.fakeredis_only
async def test_a_job_that_has_begun_but_not_started_is_released(
    make_worker: MakeWorker, gate: Gate
) -> None:
    """Its task is canceled before its first step."""
    harness = make_worker(gate)
    attempt = await harness.attempt()
    harness.slots.start(harness.executor.run(attempt))
    reading = asyncio.create_task(asyncio.sleep(0))
    harness.executor.begin_shutdown()
    await harness.slots.cancel()
    await harness.executor.release_remaining()
    await drain(harness.consumers, reading, 0.0)
    assert (await harness.types(attempt.lease.job_id))[-1] == b"released"


@pytest.mark.real_redis
async def test_an_abandoned_read_keeps_no_message(
    make_worker: MakeWorker, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may block in Redis for longer than the worker lives, and be delivered a message."""
    monkeypatch.setattr(sluice.worker.monitoring.shutdown, "LAST_READ_S", 0.1)
    harness = make_worker(block_ms=60_000, reading=backend.wire(block_s=60.0))
    heir = make_worker(identity=HEIR)
    harness.start()

    async def blocked() -> bool:
        return any(c["cmd"].startswith("xreadgroup") for c in await harness.client.client_list())

    await eventually(blocked)
    await stop(harness, 0.05)
    [job_id] = await heir.post()
    heir.start(recover=True)
    assert await heir.ended([job_id]) == {b"done"}


@pytest.mark.fakeredis_only
async def test_draining_does_not_wait_for_an_abandoned_handler(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.execution.attempt.HARD_KILL_S", 0.05)
    stubborn = Stubborn()
    harness = make_worker(stubborn)
    try:
        job_id = await running(harness, options=job_options(0.1))
        await stop(harness, 60)  # it times out meanwhile, and is abandoned
    finally:
        stubborn.released.set()
    assert await harness.settled(job_id) == b"error"


@pytest.mark.fakeredis_only
async def test_an_unreported_job_is_released_if_redis_does_not_answer(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.execution.executor.RELEASE_TIMEOUT_S", 0.1)
    harness = make_worker(lambda context, payload: 1)
    attempt = await harness.attempt()

    async def hang(*args: Any, **rest: Any) -> Any:
        await asyncio.Event().wait()

    harness.executor._store.finish = hang  # type: ignore[method-assign]
    harness.executor._store.release = hang  # type: ignore[method-assign]
    working = asyncio.create_task(harness.executor.run(attempt))
    await eventually(lambda: harness.executor._running)
    await asyncio.sleep(0)
    harness.executor.begin_shutdown()
    working.cancel()
    assert await asyncio.wait_for(working, 5) is Outcome.LEFT


@pytest.mark.real_redis
@pytest.mark.one_server
@pytest.mark.parametrize("how", ["silent", "gone"])
async def test_a_worker_stops_even_if_redis_is_unavailable(
    backend: Backend,
    keys: JobKeys,
    worker: WorkerIdentity,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.worker.execution.executor.RELEASE_TIMEOUT_S", 0.3)
    monkeypatch.setattr("sluice.worker.monitoring.shutdown.RELEASE_MESSAGES_S", 0.3)
    gate = Gate(closed=True)
    async with Proxy(backend.url or "") as proxy:
        behind = Backend("proxy", proxy.url)
        harness = WorkerHarness(behind, keys, worker, registry_of(gate), max_inflight=4)
        try:
            harness.start()
            await harness.post(4)
            await eventually(lambda: gate.now == 4)
            proxy.silent = True
            if how == "gone":
                assert proxy._server is not None
                proxy._server.close()
                proxy.hang_up()
            await stop(harness, 0.1)
        finally:
            gate.open.set()
            proxy.hang_up()
            await harness.close()
            await behind.close()


# -- signals ----------------------------------------------------------------------------------


@pytest.mark.fakeredis_only
async def test_the_first_signal_drains_and_the_second_forces(make_worker: MakeWorker) -> None:
    gate = Gate(closed=True)
    harness = make_worker(gate)
    job_id = await running(harness)
    signals = StopSignals()
    for taker in harness._takers:
        taker.cancel()
    reading, harness._reading = harness._reading, None
    assert reading is not None
    draining = asyncio.create_task(drain(harness.consumers, reading, 60.0, signals))
    signals._on_signal(signal.SIGTERM)
    await eventually(lambda: reading.done())
    assert not draining.done()
    assert signals.stop_requested.is_set()
    assert not signals.force_requested.is_set()
    signals._on_signal(signal.SIGTERM)
    await within(15, draining)  # type: ignore[arg-type]
    assert (await harness.types(job_id))[-1] == b"released"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["the same", "another"])
async def test_after_the_second_signal_the_third_is_the_default(
    second: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    removed: set[int] = set()
    monkeypatch.setattr(loop, "add_signal_handler", lambda *args: None)
    monkeypatch.setattr(loop, "remove_signal_handler", lambda number: removed.add(number))
    monkeypatch.setattr(signal, "signal", lambda number, action: None)
    signals = StopSignals()
    signals.install()
    signals._on_signal(signal.SIGTERM)
    assert removed == set()
    signals._on_signal(second)
    assert {signal.SIGTERM, signal.SIGINT} <= removed
