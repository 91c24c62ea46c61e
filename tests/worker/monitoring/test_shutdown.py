"""Shutdown of a worker: running jobs may finish, the rest is released at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import Any

import pytest

import worker.monitoring.shutdown
from common.contracts.jobs import JobKeys
from common.errors import StoreUnavailable
from common.jobs.store import WorkerIdentity
from tests.common.kit import Proxy
from tests.conftest import eventually
from tests.support.backends import Backend
from tests.worker.kit import Rig, RigMaker, job_options, registry_of, within
from worker.errors import TransientError
from worker.execution.executor import Outcome
from worker.monitoring.shutdown import StopSignals, drain

HEIR = WorkerIdentity("workers", "heir", 30_000, 600)
#: Less than a third of a lease, however slow this machine is.
SOON_S = 9


class Held:
    """A handler that runs until it is released or canceled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let_go = asyncio.Event()

    async def handle(self, context: Any, payload: Any) -> int:
        self.begun.append(context.job_id)
        await context.emit("token", {})
        await self.let_go.wait()
        return int(context.attempt)


async def test_a_released_job_continues_in_another_worker_at_once(rig: RigMaker) -> None:
    """Although the lease is half a minute, and the job has only one attempt."""
    held = Held()
    rigged, heir = rig(held.handle), rig(held.handle, identity=HEIR)
    rigged.start()
    [job_id] = await rigged.post(max_attempts=1)
    await eventually(lambda: held.begun)
    await within(15, rigged.stop(0.05))
    assert (await rigged.job(job_id))[b"status"] == b"queued"
    story = await rigged.parsed_events(job_id)
    assert [kind for kind, _, _ in story] == ["queued", "running", "token", "released"]
    assert story[-1][1] == "worker.release"
    assert story[-1][2]["attempt"] == 1
    held.let_go.set()
    before = time.monotonic()
    heir.start(recover=True)
    assert await heir.settled(job_id) == b"done"
    assert time.monotonic() - before < SOON_S
    assert (await heir.job(job_id))[b"result"] == b"2"
    assert (await heir.types(job_id)).count(b"done") == 1
    await heir.all_acked()


async def test_releases_never_use_up_attempts(rig: RigMaker) -> None:
    held = Held()
    job_id = ""
    for number in range(4):
        rigged = rig(held.handle, identity=HEIR._replace(consumer=f"w{number}"))
        rigged.start(recover=True)
        if not job_id:
            [job_id] = await rigged.post(max_attempts=2)
        await eventually(lambda number=number: len(held.begun) == number + 1)
        await within(15, rigged.stop(0.0))
    held.let_go.set()
    last = rig(held.handle, identity=HEIR)
    last.start(recover=True)
    assert await last.settled(job_id) == b"done"
    assert (await last.types(job_id)).count(b"released") == 4


async def test_jobs_that_end_in_time_are_not_released(rig: RigMaker) -> None:
    held = Held()
    rigged = rig(held.handle)
    rigged.start()
    jobs = await rigged.post(3)
    await eventually(lambda: len(held.begun) == 3)
    stopping = asyncio.create_task(rigged.stop(60))
    await eventually(lambda: rigged.slots.interrupted)
    held.let_go.set()
    await within(15, stopping)  # type: ignore[arg-type]
    for job_id in jobs:
        assert await rigged.types(job_id) == [b"queued", b"running", b"token", b"done"]
    assert await rigged.pending() == 0


async def test_events_are_kept_only_up_to_the_release(rig: RigMaker) -> None:
    begun = asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await context.emit("farewell", {})

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(begun.wait(), 10)
    await within(15, rigged.stop(0.0))
    assert await rigged.types(job_id) == [b"queued", b"running", b"farewell", b"released"]


@pytest.mark.parametrize(
    "error", [RuntimeError("interrupted"), ConnectionError("torn"), SystemExit(1)]
)
async def test_a_job_that_fails_because_of_the_shutdown_is_released(
    fake_rig: RigMaker, error: BaseException
) -> None:
    """Libraries may turn a cancellation into another exception."""
    begun = asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    rigged = fake_rig(handler)
    rigged.start()
    [job_id] = await rigged.post(max_attempts=1)
    await asyncio.wait_for(begun.wait(), 10)
    await within(15, rigged.stop(0.0))
    assert await rigged.types(job_id) == [b"queued", b"running", b"released"]
    assert await rigged.dead_letters() == []


async def test_a_handler_that_returns_during_the_shutdown_has_finished(
    fake_rig: RigMaker,
) -> None:
    begun = asyncio.Event()

    async def handler(context: Any, payload: Any) -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "just in time"

    rigged = fake_rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(begun.wait(), 10)
    await within(15, rigged.stop(0.0))
    assert (await rigged.job(job_id))[b"result"] == b'"just in time"'


async def test_a_job_is_released_if_its_handler_ignores_the_cancel(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.slots.CANCEL_TIMEOUT_S", 0.05)
    begun, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(context: Any, payload: Any) -> str:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    rigged = rig(handler)
    rigged.start()
    try:
        [job_id] = await rigged.post(max_attempts=1)
        await asyncio.wait_for(begun.wait(), 10)
        await within(15, rigged.stop(0.0))
        assert await rigged.types(job_id) == [b"queued", b"running", b"released"]
        before = await rigged.snapshot()
    finally:
        let_go.set()
    await asyncio.wait_for(ended.wait(), 5)
    await eventually(lambda: not rigged.executor._running)
    assert await rigged.snapshot() == before


async def test_many_releases_without_redis_run_concurrently(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release is tried for a while; all of them at the same time."""
    monkeypatch.setattr("worker.queue.slots.CANCEL_TIMEOUT_S", 0.05)
    monkeypatch.setattr("worker.execution.executor.RELEASE_TIMEOUT_S", 60.0)
    let_go, begun = asyncio.Event(), 0
    tried, all_tried = 0, asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        nonlocal begun
        begun += 1
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    rigged = fake_rig(handler, max_inflight=8)
    rigged.start()
    try:
        await rigged.post(8)
        await eventually(lambda: begun == 8)

        async def away(*args: Any, **rest: Any) -> Any:
            nonlocal tried
            tried += 1
            if tried == 8:
                all_tried.set()
            await all_tried.wait()  # not one after the other
            raise StoreUnavailable("away")

        rigged.executor._store.release = away  # type: ignore[method-assign]
        await within(15, rigged.stop(0.0))
        assert tried == 8
    finally:
        let_go.set()


async def test_waiting_messages_are_released_at_once(rig: RigMaker) -> None:
    """Messages in the wait queue, and retries that are not due: another worker takes them."""
    held = Held()

    async def flaky(context: Any, payload: Any) -> None:
        if context.attempt == 1:
            raise TransientError("once", retry_after_s=0.5)

    registry = registry_of(held.handle, "chat")
    registry.add("plan", flaky)
    limits = {"chat": 1}
    rigged = rig(registry=registry, max_inflight=3, task_limits=limits)
    heir = rig(registry=registry, identity=HEIR, max_inflight=3, task_limits=limits)
    rigged.start()
    chats, [plan] = await rigged.post(4, task="chat"), await rigged.post(task="plan")
    await eventually(
        lambda: rigged.consumer.waiting.total == 3 and len(rigged.consumer.deferred) == 1
    )
    await within(15, rigged.stop(0.0))
    held.let_go.set()
    heir.start(recover=True)
    before = time.monotonic()
    assert await heir.ended([*chats, plan]) == {b"done"}
    assert time.monotonic() - before < SOON_S
    await heir.all_acked()


async def test_waiting_messages_need_not_wait_for_running_jobs(rig: RigMaker) -> None:
    """The grace period is for running jobs; waiting messages are released at once."""
    held = Held()
    registry = registry_of(held.handle, "chat")
    rigged = rig(registry=registry, max_inflight=3, task_limits={"chat": 1})
    other = rig(lambda context, payload: 1, identity=HEIR)
    rigged.start()
    first, *parked = await rigged.post(3)
    await eventually(lambda: rigged.consumer.waiting.total == 2)
    stopping = asyncio.create_task(rigged.stop(60))
    try:
        other.start(recover=True)
        assert await other.ended(parked) == {b"done"}
        assert (await other.job(first))[b"status"] == b"running"
    finally:
        held.let_go.set()
        await within(15, stopping)  # type: ignore[arg-type]
    assert await other.settled(first) == b"done"


async def test_a_job_that_fails_during_the_shutdown_is_retried(
    rig: RigMaker,
) -> None:
    held = Held()

    async def handler(context: Any, payload: Any) -> int:
        await held.handle(context, payload)
        if context.attempt == 1:
            raise TransientError("once", retry_after_s=0.1)
        return int(context.attempt)

    rigged, heir = rig(handler), rig(handler, identity=HEIR)
    rigged.start()
    [job_id] = await rigged.post()
    await eventually(lambda: held.begun)
    stopping = asyncio.create_task(rigged.stop(60))
    await eventually(lambda: rigged.slots.interrupted)
    held.let_go.set()
    await within(15, stopping)  # type: ignore[arg-type]
    assert (await rigged.types(job_id))[-1] == b"retry"
    heir.start(recover=True)
    before = time.monotonic()
    assert await heir.settled(job_id) == b"done"
    assert time.monotonic() - before < SOON_S


async def test_a_job_whose_begin_is_in_progress_is_not_left_running(rig: RigMaker) -> None:
    """Redis has begun it and the reply is missing: otherwise it would wait for a whole lease."""
    ran: list[str] = []
    rigged = rig(lambda context, payload: ran.append(context.job_id))
    await rigged.group()
    begin, begun, held = rigged.claimer._store.begin, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        outcomes = await begin(*args, **rest)
        begun.set()
        await held.wait()
        return outcomes

    rigged.claimer._store.begin = slow  # type: ignore[method-assign]
    rigged.start()
    [job_id] = await rigged.post(max_attempts=1)
    await asyncio.wait_for(begun.wait(), 10)
    stopping = asyncio.create_task(rigged.stop(0.0))
    asyncio.get_running_loop().call_later(0.2, held.set)
    await within(15, stopping)  # type: ignore[arg-type]
    assert (await rigged.job(job_id))[b"status"] in (b"queued", b"done")


async def test_a_job_that_has_begun_but_not_started_is_released(fake_rig: RigMaker) -> None:
    """Its task is canceled before its first step."""
    rigged = fake_rig(Held().handle)
    attempt = await rigged.attempt()
    rigged.slots.start(rigged.executor.run(attempt))
    reading = asyncio.create_task(asyncio.sleep(0))
    rigged.executor.begin_shutdown()
    await rigged.slots.cancel()
    await rigged.executor.release_remaining()
    await drain(rigged.consumers, reading, 0.0)
    assert (await rigged.types(attempt.lease.job_id))[-1] == b"released"


async def test_an_abandoned_read_keeps_no_message(
    real_rig: RigMaker, real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may block in Redis for longer than the worker lives, and be delivered a message."""
    monkeypatch.setattr(worker.monitoring.shutdown, "LAST_READ_S", 0.1)
    rigged = real_rig(block_ms=60_000, reading=real_backend.wire(block_s=60.0))
    heir = real_rig(identity=HEIR)
    rigged.start()

    async def blocked() -> bool:
        return any(c["cmd"].startswith("xreadgroup") for c in await rigged.client.client_list())

    await eventually(blocked)
    await within(15, rigged.stop(0.05))
    [job_id] = await heir.post()
    heir.start(recover=True)
    assert await heir.ended([job_id]) == {b"done"}


async def test_draining_does_not_wait_for_an_abandoned_handler(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.execution.attempt.HARD_KILL_S", 0.05)
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    rigged = fake_rig(handler)
    rigged.start()
    try:
        [job_id] = await rigged.post(options=job_options(0.3))
        await asyncio.wait_for(begun.wait(), 10)
        await within(15, rigged.stop(60))  # it times out meanwhile, and is abandoned
    finally:
        let_go.set()
    assert await rigged.settled(job_id) == b"error"


async def test_an_unreported_job_is_released_if_redis_does_not_answer(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.execution.executor.RELEASE_TIMEOUT_S", 0.1)
    rigged = fake_rig(lambda context, payload: 1)
    attempt = await rigged.attempt()

    async def hang(*args: Any, **rest: Any) -> Any:
        await asyncio.Event().wait()

    rigged.executor._store.finish = hang  # type: ignore[method-assign]
    rigged.executor._store.release = hang  # type: ignore[method-assign]
    working = asyncio.create_task(rigged.executor.run(attempt))
    await eventually(lambda: rigged.executor._running)
    await asyncio.sleep(0)
    rigged.executor.begin_shutdown()
    working.cancel()
    assert await asyncio.wait_for(working, 5) is Outcome.LEFT


@pytest.mark.one_server
@pytest.mark.parametrize("how", ["silent", "gone"])
async def test_a_worker_stops_even_if_redis_is_unavailable(
    real_backend: Backend,
    keys: JobKeys,
    worker: WorkerIdentity,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.execution.executor.RELEASE_TIMEOUT_S", 0.3)
    monkeypatch.setattr("worker.monitoring.shutdown.RELEASE_MESSAGES_S", 0.3)
    held = Held()
    async with Proxy(real_backend.url or "") as proxy:
        behind = Backend("proxy", proxy.url)
        rigged = Rig(behind, keys, worker, registry_of(held.handle), max_inflight=4)
        try:
            rigged.start()
            await rigged.post(4)
            await eventually(lambda: len(held.begun) == 4)
            proxy.silent = True
            if how == "gone":
                assert proxy._server is not None
                proxy._server.close()
                proxy.hang_up()
            await within(15, rigged.stop(0.1))
        finally:
            held.let_go.set()
            proxy.hang_up()
            await rigged.close()
            await behind.close()


# -- signals ----------------------------------------------------------------------------------


async def test_the_first_signal_drains_and_the_second_forces(fake_rig: RigMaker) -> None:
    held = Held()
    rigged = fake_rig(held.handle)
    rigged.start()
    [job_id] = await rigged.post()
    await eventually(lambda: held.begun)
    signals = StopSignals()
    for taker in rigged._takers:
        taker.cancel()
    reading, rigged._reading = rigged._reading, None
    assert reading is not None
    draining = asyncio.create_task(drain(rigged.consumers, reading, 60.0, signals))
    signals._on_signal(signal.SIGTERM)
    await eventually(lambda: reading.done())
    assert not draining.done()
    assert signals.stop_requested.is_set()
    assert not signals.force_requested.is_set()
    signals._on_signal(signal.SIGTERM)
    await within(15, draining)  # type: ignore[arg-type]
    assert (await rigged.types(job_id))[-1] == b"released"


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
