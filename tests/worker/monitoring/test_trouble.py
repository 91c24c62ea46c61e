"""Redis fails, loses data or is corrupted while jobs run: no busy loops, and full recovery."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.store import WorkerIdentity
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.worker.errors import TransientError
from sluice.worker.monitoring.cleanup import QueueCleaner
from tests.support.servers import REAL, Backend, RealServer, require_binary
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness, registry_of

SHORT = WorkerIdentity("workers", "c1", 1500, 600)


class Commands:
    """Counts the commands on all connections."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def note(self, args: tuple[Any, ...]) -> None:
        self.sent[str(args[0])] += 1

    @property
    def total(self) -> int:
        return sum(self.sent.values())


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    counted, execute = Commands(), PipelinedConnection.execute_command

    async def counting(self: PipelinedConnection, *args: Any) -> Any:
        counted.note(args)
        return await execute(self, *args)

    monkeypatch.setattr(PipelinedConnection, "execute_command", counting)
    return counted


class Busy:
    """A worker with jobs in every state: running, waiting for a slot, waiting for a retry."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let_go = asyncio.Event()

    async def hold(self, context: Any, payload: Any) -> None:
        self.begun.append(context.job_id)
        await self.let_go.wait()

    async def flaky(self, context: Any, payload: Any) -> int:
        if context.attempt == 1:
            raise TransientError("once", retry_after_s=payload.get("wait_s", 0.05))
        return int(context.attempt)

    def registry(self) -> Any:
        registry = registry_of(self.hold, "chat")
        registry.add("plan", self.flaky)
        registry.add("tool", lambda context, payload: 1)
        return registry


async def fill(harness: WorkerHarness, busy: Busy) -> dict[str, list[str]]:
    await harness.group()
    jobs = {
        "chat": await harness.post(4, task="chat"),
        "plan": await harness.post(2, task="plan", payload=b'{"wait_s":2}'),
        "tool": await harness.post(1, task="tool", delay_ms=900, schedule_limit=10),
    }
    harness.start(recover=True)
    await eventually(lambda: busy.begun)
    await eventually(
        lambda: harness.consumer.waiting.total >= 3 and len(harness.consumer.deferred) >= 2
    )
    return jobs


async def assert_serves(harness: WorkerHarness, busy: Busy, timeout_s: float = 8.0) -> None:
    """New jobs of every kind run."""
    busy.let_go.set()

    jobs = [
        *(await harness.post(task="chat")),
        *(await harness.post(task="plan")),
        *(await harness.post(task="tool", delay_ms=50, schedule_limit=10)),
    ]
    assert await harness.ended(jobs, timeout_s) == {b"done"}
    # And cancels work again.
    busy.let_go.clear()
    busy.begun.clear()
    [held] = await harness.post(task="chat")
    await eventually(lambda: held in busy.begun)
    await harness.cancel(held)
    assert await harness.ended([held], 5) == {b"canceled"}
    busy.let_go.set()
    await harness.all_acked()
    await eventually(lambda: harness.slots.free == 3)
    await eventually(lambda: harness.consumer.waiting.total == 0)


@pytest.fixture
async def busy() -> Busy:
    return Busy()


@pytest.fixture
def harness(make_worker: MakeWorker, busy: Busy, monkeypatch: pytest.MonkeyPatch) -> WorkerHarness:
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 1.0)
    return make_worker(
        registry=busy.registry(), identity=SHORT, max_inflight=3, task_limits={"chat": 1}
    )


@pytest.mark.real_redis
async def test_a_flush_while_jobs_run(
    harness: WorkerHarness, busy: Busy, commands: Commands
) -> None:
    await fill(harness, busy)
    await harness.client.flushall()
    before = commands.total
    harness.leases.wake()
    await eventually(
        lambda: harness.slots.busy == 0
    )  # the jobs are gone, and their handlers were stopped
    await assert_serves(harness, busy)
    assert commands.total - before < 600
    assert await harness.without_ttl() == []


@pytest.mark.slow("counts commands for a second")
@pytest.mark.real_redis
@pytest.mark.parametrize("spoilt", ["queue", "schedule"])
async def test_a_corrupt_key_causes_no_busy_loop(
    harness: WorkerHarness, busy: Busy, commands: Commands, spoilt: str
) -> None:
    await fill(harness, busy)
    key = harness.keys.queue if spoilt == "queue" else harness.keys.scheduled
    await harness.client.set(key, "a string")
    busy.let_go.set()
    before = commands.total
    await asyncio.sleep(1.2)  # no event to wait for: the time in which commands are counted
    assert commands.total - before < 120, commands.sent
    await harness.client.delete(key)
    await assert_serves(harness, busy, 12)


# -- restarts ---------------------------------------------------------------------------------


@pytest.mark.slow("restarts a server")
async def test_a_restart_of_redis_while_jobs_run(
    keys: JobKeys, busy: Busy, commands: Commands
) -> None:
    server = RealServer(require_binary(REAL[0]), durable=True)
    backend = Backend("own", server.url)
    harness = WorkerHarness(
        backend, keys, SHORT, busy.registry(), max_inflight=3, task_limits={"chat": 1}
    )
    try:
        jobs = await fill(harness, busy)
        server.kill()
        busy.let_go.set()
        before = commands.total
        await asyncio.sleep(1.5)  # no event to wait for: the time in which commands are counted
        assert commands.total - before < 150, commands.sent
        server.restart()
        every = [job_id for kind in jobs.values() for job_id in kind]
        assert await harness.ended(every) == {b"done"}
        for job_id in every:
            assert (await harness.types(job_id)).count(b"done") == 1
        await assert_serves(harness, busy)
    finally:
        busy.let_go.set()
        await harness.close()
        await backend.close()
        server.close()


# -- background loops -------------------------------------------------------------------------


class Breaks:
    """Raises an expected and an unexpected error, then calls the original."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._errors: list[Exception] = [KeyError("nobody foresaw this"), StoreUnavailable("away")]
        self.calls = 0

    async def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self._errors:
            raise self._errors.pop()
        return await self._real(*args)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("role", ["recovery", "deferred", "cleaner", "promoter"])
async def test_background_loops_survive_unexpected_errors(
    make_worker: MakeWorker, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that ended would be noticed only when jobs hang."""
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr("sluice.worker.queue.deferred._BACKOFF_S", 0.01)
    monkeypatch.setattr("sluice.common.jobs.queue.LONGEST_WAIT_S", 0.01)
    harness = make_worker()
    await harness.group()
    consumer = harness.consumer
    cleaner = QueueCleaner(consumer.queue, "workers", every_s=0.01)
    owner, name, run = {
        "recovery": (consumer.recovery, "run_once", consumer.recovery.run),
        "deferred": (
            consumer.deferred,
            "run_once",
            partial(consumer.deferred.run, consumer.admission.offer),
        ),
        "cleaner": (consumer.queue, "trim", cleaner.run),
        "promoter": (consumer.queue, "due_jobs", consumer.promoter.run),
    }[role]
    breaks = Breaks(getattr(owner, name))
    monkeypatch.setattr(owner, name, breaks)
    running = asyncio.create_task(run())
    try:
        await eventually(lambda: breaks.calls > 2 or running.done())
        assert not running.done()
    finally:
        await cancel(running)


@pytest.mark.fakeredis_only
async def test_idle_consumers_are_removed_first_and_then_rarely(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.monitoring.cleanup.FORGET_EVERY", 3)
    harness = make_worker()
    await harness.group()
    rounds: list[int] = []
    looked: list[int] = []

    async def remove_idle(group: str, idle_ms: int) -> int:
        assert (group, idle_ms) == ("workers", 24 * 3600 * 1000)
        looked.append(rounds[-1])
        return 1

    harness.consumer.queue.remove_idle_consumers = remove_idle  # type: ignore[method-assign]
    for number in range(7):
        rounds.append(number)
        await harness.consumer.cleaner.run_once()
    assert looked == [0, 3, 6]
