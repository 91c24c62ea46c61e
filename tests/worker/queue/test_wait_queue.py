"""Wait queues: messages wait at no cost, and run in the first worker with a free slot."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sluice.common.contracts.jobs import WAIT_QUEUE_PREFIX
from sluice.common.jobs.store import WorkerIdentity
from tests.support.store.aging import hurry
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness, registry_of

MODEL = frozenset({"chat", "plan", "code"})
DOWN = "the model server does not answer"


class Runs:
    """Which worker ran which job, in which order."""

    def __init__(self, make_worker: MakeWorker) -> None:
        self.by: list[tuple[str, str]] = []
        self.inside = self.most = 0
        self._make_worker = make_worker

    def worker(
        self, name: str, *, open: bool = False, lease_ms: int = 30_000, **options: Any
    ) -> WorkerHarness:
        """A worker that runs jobs of the model, or lets them wait."""

        async def handler(context: Any, payload: Any) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.by.append((name, context.job_id))
            await asyncio.sleep(0.002)
            self.inside -= 1

        registry = registry_of(handler, *options.pop("tasks", ("chat", "plan", "rag")))
        identity = WorkerIdentity("workers", name, lease_ms, 600)
        worker = self._make_worker(registry=registry, identity=identity, **options)
        if not open:
            worker.consumer.limits.set_limit(MODEL, 0, DOWN)
        return worker

    @property
    def jobs(self) -> list[str]:
        return [job_id for _, job_id in self.by]


@pytest.fixture
def runs(make_worker: MakeWorker) -> Runs:
    return Runs(make_worker)


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.worker.queue.wait_queue.CHECK_S", 0.1)


async def wait_queues(worker: WorkerHarness) -> dict[str, int]:
    return await worker.consumer.wait_queue._wait_queues.count()


async def waiting(worker: WorkerHarness, number: int) -> None:
    async def there() -> bool:
        return sum((await wait_queues(worker)).values()) == number

    await eventually(there)


async def test_a_task_without_slots_waits_while_others_continue(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of the model wait for it, with a job of another task behind them."""
    monkeypatch.setattr("sluice.worker.queue.wait_queue.POLL_S", 60.0)  # not only at the next poll
    worker = runs.worker("a", max_inflight=2)
    waiting_jobs = []
    for _ in range(10):
        waiting_jobs += await worker.post(task="chat") + await worker.post(task="plan")
    [rag] = await worker.post(task="rag")
    worker.start()
    assert await worker.settled(rag) == b"done"
    await waiting(worker, 20)
    assert runs.jobs == [rag]
    for job_id in waiting_jobs[:3]:
        assert (await worker.job(job_id))[b"status"] == b"queued"
        assert await worker.types(job_id) == [b"queued"]
    worker.consumer.limits.set_limit(MODEL, 1)
    late = await worker.post(3)
    assert await worker.ended([*waiting_jobs, *late]) == {b"done"}
    assert runs.jobs == [rag, *waiting_jobs, *late]  # each once, the oldest first
    await worker.all_acked()


@pytest.mark.real_redis
async def test_two_workers_without_slots_lose_nothing_and_stay_idle(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.recovery.LONGEST_WAIT_S", 0.2)
    workers = [runs.worker(name, max_inflight=2) for name in ("a", "b")]
    lease_ms = workers[0].worker.lease_ms
    aging = hurry(monkeypatch, workers[0], WAIT_QUEUE_PREFIX, workers=2, wake_s=0.2)
    for each in workers:
        each.start(recover=True)
    jobs = await workers[0].post(60)
    await waiting(workers[0], 60)
    client = workers[0].client
    before = (await client.info("commandstats")).copy()
    until_ms = aging.passed_ms + 2 * lease_ms
    await eventually(lambda: aging.passed_ms > until_ms)
    after = await client.info("commandstats")
    assert aging.longest_ms < lease_ms  # no worker may take them over
    assert await wait_queues(workers[0]) == {"chat": 60}
    assert sum(each.consumer.counters.for_task("chat").reclaimed for each in workers) == 0

    def calls(stats: Any) -> int:
        return sum(found["calls"] for name, found in stats.items() if name != "cmdstat_xrange")

    assert calls(after) - calls(before) < 1500, "they should rest"
    entries = await client.xpending_range(workers[0].keys.queue, "workers", "-", "+", 100)
    assert {entry["times_delivered"] for entry in entries} == {1}
    for each in workers:
        each.consumer.limits.set_limit(MODEL, 1)
    assert await workers[0].ended(jobs) == {b"done"}
    assert Counter(runs.jobs) == Counter(jobs)
    assert {name for name, _ in runs.by} == {"a", "b"}
    await workers[0].all_acked()


async def test_a_worker_with_slots_takes_waiting_messages_of_others(runs: Runs) -> None:
    """With its own limit or without any, and long before a lease is over."""
    closed = runs.worker("closed")
    limited = runs.worker("limited", open=True, task_limits={"chat": 1})
    closed.start()
    first = await closed.post(5)
    await waiting(closed, 5)
    limited.start()
    assert await limited.ended(first, 5) == {b"done"}
    await limited.stop()
    second = await closed.post(5)
    await waiting(closed, 5)
    await closed.stop()
    assert await wait_queues(closed) == {"chat": 5}
    free = runs.worker("free", open=True)
    free.start()
    assert await free.ended(second, 5) == {b"done"}
    assert Counter(runs.jobs) == Counter([*first, *second])
    assert {name for name, _ in runs.by} == {"limited", "free"}


async def test_a_worker_takes_no_task_without_a_handler(runs: Runs) -> None:
    closed = runs.worker("closed")
    other = runs.worker("other", open=True, tasks=("rag",))
    closed.start()
    [job_id] = await closed.post()
    await waiting(closed, 1)
    await other.consumer.waiting.refresh()
    assert await other.consumer.wait_queue.run_once(other.consumer.admission.offer_waiting) == 0
    assert (await closed.job(job_id))[b"status"] == b"queued"


@pytest.mark.usefixtures("frequent_checks")
async def test_a_canceled_or_expired_job_stops_waiting(runs: Runs) -> None:
    """A canceled one is acked, an expired one dead-lettered with its payload."""
    worker = runs.worker("a", lease_ms=300)
    worker.start()
    stays, canceled, expired = await worker.post(3)
    await waiting(worker, 3)
    assert (await worker.cancel(canceled)).value == "canceled"
    await waiting(worker, 2)
    assert await worker.pending() == 2
    assert await worker.types(canceled) == [b"queued", b"canceled"]
    await eventually(lambda: worker.consumer.wait_queue._known)  # kept without its payload
    await worker.client.delete(worker.keys.job(expired), worker.keys.events(expired))
    assert await worker.settled(expired) == b"error"
    assert b"expired_before_start" in (await worker.job(expired))[b"error"]
    [letter] = await worker.dead_letters()
    assert b"hello" in letter[b"fields"]
    worker.consumer.limits.set_limit(MODEL, None)
    assert await worker.settled(stays) == b"done"
    assert runs.jobs == [stays]
    await worker.all_acked()


async def test_waiting_messages_survive_the_death_of_all_workers(runs: Runs) -> None:
    """No worker renews the messages, so they are taken over like those of a dead worker."""
    worker = runs.worker("a", open=True, lease_ms=400)
    await worker.group()
    jobs = await worker.post(3)
    ids = await worker.take(3)
    await worker.client.xclaim(
        worker.keys.queue, "workers", f"{WAIT_QUEUE_PREFIX}chat", 0, ids, idle=500, justid=True
    )
    assert await worker.consumer.recovery.run_once() == 3
    assert await worker.ended(jobs) == {b"done"}


async def test_a_failed_put_delays_a_message_by_at_most_a_lease(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = runs.worker("a", lease_ms=400)
    put, failures = worker.consumer.wait_queue._wait_queues.put, []

    async def fails(task: str, ids: Any) -> None:
        if len(failures) < 3:
            failures.append(ids)
            raise RedisConnectionError("reset")
        await put(task, ids)

    monkeypatch.setattr(worker.consumer.wait_queue._wait_queues, "put", fails)
    worker.start(recover=True)
    jobs = await worker.post(5)
    await waiting(worker, 5)
    assert failures
    worker.consumer.limits.set_limit(MODEL, 1)
    assert await worker.ended(jobs) == {b"done"}
    assert Counter(runs.jobs) == Counter(jobs)


@pytest.mark.fakeredis_only
async def test_errors_while_taking_and_renewing_are_retried(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.queue.wait_queue._BACKOFF_S", 0.01)
    monkeypatch.setattr("sluice.worker.queue.wait_queue.POLL_S", 0.02)
    worker = runs.worker("a", open=True, lease_ms=300, task_limits={"chat": 1})
    calls: Counter[str] = Counter()
    for name in ("take", "count", "touch"):
        method = getattr(worker.consumer.wait_queue._wait_queues, name)

        async def flaky(*args: Any, name: str = name, method: Any = method) -> Any:
            calls[name] += 1
            if calls[name] % 2:
                raise (RedisConnectionError("reset") if calls[name] % 4 == 1 else ValueError("?"))
            return await method(*args)

        monkeypatch.setattr(worker.consumer.wait_queue._wait_queues, name, flaky)
    worker.start()
    jobs = await worker.post(6)
    assert await worker.ended(jobs) == {b"done"}
    await eventually(lambda: calls["count"] > 3)
    assert runs.most == 1


@pytest.mark.real_redis
async def test_limits_that_change_all_the_time(runs: Runs) -> None:
    workers = [runs.worker(name, max_inflight=3) for name in ("a", "b")]
    for each in workers:
        each.start(recover=True)
    jobs: list[str] = []
    for number in range(30):
        for each in workers:
            each.consumer.limits.set_limit(MODEL, (0, 1, 2, None)[number % 4], DOWN)
        jobs += await workers[0].post(4)
        await asyncio.sleep(0.01)
    for each in workers:
        each.consumer.limits.set_limit(MODEL, 1)
    assert await workers[0].ended(jobs) == {b"done"}
    assert Counter(runs.jobs) == Counter(jobs)
    await workers[0].all_acked()
