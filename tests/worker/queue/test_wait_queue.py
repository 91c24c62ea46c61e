"""Wait queues: messages wait at no cost, and run in the first worker with a free slot."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from common.contracts.jobs import WAIT_QUEUE_PREFIX
from common.jobs.store import WorkerIdentity
from tests.common.aging import hurry
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker, registry_of

MODEL = frozenset({"chat", "plan", "code"})
DOWN = "the model server does not answer"


class Runs:
    """Which worker ran which job, in which order."""

    def __init__(self) -> None:
        self.by: list[tuple[str, str]] = []
        self.inside = self.most = 0

    def registry(self, name: str, *tasks: str) -> Any:
        async def handler(context: Any, payload: Any) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.by.append((name, context.job_id))
            await asyncio.sleep(0.002)
            self.inside -= 1

        return registry_of(handler, *(tasks or ("chat", "plan", "rag")))

    @property
    def jobs(self) -> list[str]:
        return [job_id for _, job_id in self.by]


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the jobs of waiting messages more often."""
    monkeypatch.setattr("worker.queue.wait_queue.CHECK_S", 0.1)


def named(name: str, lease_ms: int = 30_000) -> WorkerIdentity:
    return WorkerIdentity("workers", name, lease_ms, 600)


async def wait_queues(rigged: Rig) -> dict[str, int]:
    return await rigged.consumer.wait_queue._wait_queues.count()


async def waiting(rigged: Rig, number: int) -> None:
    async def there() -> bool:
        return sum((await wait_queues(rigged)).values()) == number

    await eventually(there)


async def test_a_task_without_slots_waits_while_others_continue(rig: RigMaker) -> None:
    """Many chat jobs wait for a dead model, with a job of another task behind them."""
    runs = Runs()
    rigged = rig(registry=runs.registry("a"), max_inflight=2)
    await rigged.group()
    rigged.consumer.limits.set_limit(MODEL, 0, DOWN)
    chats = await rigged.post(60)
    [rag] = await rigged.post(task="rag")
    rigged.start()
    assert await rigged.settled(rag) == b"done"
    await waiting(rigged, 60)
    assert runs.jobs == [rag]
    for job_id in chats[:3]:
        assert (await rigged.job(job_id))[b"status"] == b"queued"
        assert await rigged.types(job_id) == [b"queued"]
    rigged.consumer.limits.set_limit(MODEL, 2)
    assert await rigged.ended(chats) == {b"done"}
    assert runs.most <= 2
    assert Counter(runs.jobs) == Counter([*chats, rag])  # each once
    await rigged.all_acked()


async def test_the_message_that_waited_longest_runs_first(rig: RigMaker) -> None:
    runs = Runs()
    rigged = rig(registry=runs.registry("a"), max_inflight=4)
    await rigged.group()
    rigged.consumer.limits.set_limit(MODEL, 0, DOWN)
    rigged.start()
    jobs = []
    for _ in range(12):
        jobs += await rigged.post(task="chat") + await rigged.post(task="plan")
    await waiting(rigged, 24)
    rigged.consumer.limits.set_limit(MODEL, 1)
    late = await rigged.post(3)
    assert await rigged.ended([*jobs, *late]) == {b"done"}
    assert runs.jobs == [*jobs, *late]


async def test_freed_slots_are_filled_from_the_wait_queue_at_once(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.wait_queue.POLL_S", 60.0)  # not only at the next poll
    runs = Runs()
    rigged = rig(registry=runs.registry("a"))
    await rigged.group()
    rigged.consumer.limits.set_limit(MODEL, 0, DOWN)
    rigged.start()
    [job_id] = await rigged.post()
    await waiting(rigged, 1)
    rigged.consumer.limits.set_limit(MODEL, 1)
    await eventually(lambda: runs.by)
    assert await rigged.settled(job_id) == b"done"


async def test_two_workers_without_slots_lose_nothing_and_stay_idle(
    real_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.recovery.LONGEST_WAIT_S", 0.2)
    runs = Runs()
    workers = [
        real_rig(registry=runs.registry(name), identity=named(name), max_inflight=2)
        for name in ("a", "b")
    ]
    lease_ms = workers[0].worker.lease_ms
    aging = hurry(monkeypatch, workers[0], WAIT_QUEUE_PREFIX, workers=2, wake_s=0.2)
    await workers[0].group()
    for each in workers:
        each.consumer.limits.set_limit(MODEL, 0, DOWN)
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


async def test_a_worker_with_slots_takes_waiting_messages_of_others(rig: RigMaker) -> None:
    """With its own limit or without any, and long before a lease is over."""
    runs = Runs()
    closed = rig(registry=runs.registry("closed"), identity=named("closed"))
    opened = rig(registry=runs.registry("open"), identity=named("open"), task_limits={"chat": 1})
    free = rig(registry=runs.registry("free"), identity=named("free"))
    await closed.group()
    closed.consumer.limits.set_limit(MODEL, 0, DOWN)
    closed.start()
    first = await closed.post(5)
    await waiting(closed, 5)
    opened.start()
    assert await opened.ended(first, 5) == {b"done"}
    await opened.stop()
    second = await closed.post(5)
    await waiting(closed, 5)
    free.start()
    assert await free.ended(second, 5) == {b"done"}
    assert Counter(runs.jobs) == Counter([*first, *second])
    assert {name for name, _ in runs.by} == {"open", "free"}


async def test_a_worker_takes_no_task_without_a_handler(rig: RigMaker) -> None:
    runs = Runs()
    closed = rig(registry=runs.registry("closed"), identity=named("closed"))
    other = rig(registry=runs.registry("other", "rag"), identity=named("other"))
    await closed.group()
    closed.consumer.limits.set_limit(MODEL, 0, DOWN)
    closed.start()
    [job_id] = await closed.post()
    await waiting(closed, 1)
    await other.consumer.waiting.refresh()
    assert await other.consumer.wait_queue.run_once(other.consumer.admission.offer_waiting) == 0
    assert (await closed.job(job_id))[b"status"] == b"queued"


@pytest.mark.usefixtures("frequent_checks")
async def test_a_canceled_job_stops_waiting(rig: RigMaker) -> None:
    runs = Runs()
    rigged = rig(registry=runs.registry("a"), identity=named("a", 300))
    await rigged.group()
    rigged.consumer.limits.set_limit(MODEL, 0, DOWN)
    rigged.start()
    stays, goes = await rigged.post(2)
    await waiting(rigged, 2)
    assert (await rigged.cancel(goes)).value == "canceled"
    await waiting(rigged, 1)
    assert await rigged.pending() == 1
    assert await rigged.types(goes) == [b"queued", b"canceled"]
    rigged.consumer.limits.set_limit(MODEL, None)
    assert await rigged.settled(stays) == b"done"
    assert runs.jobs == [stays]


@pytest.mark.usefixtures("frequent_checks")
async def test_a_job_that_expires_while_it_waits_is_dead_lettered(rig: RigMaker) -> None:
    runs = Runs()
    rigged = rig(registry=runs.registry("a"), identity=named("a", 300))
    await rigged.group()
    rigged.consumer.limits.set_limit(MODEL, 0, DOWN)
    rigged.start()
    [job_id] = await rigged.post()
    await waiting(rigged, 1)
    await eventually(lambda: rigged.consumer.wait_queue._known)  # kept without its payload
    await rigged.client.delete(rigged.keys.job(job_id), rigged.keys.events(job_id))
    assert await rigged.settled(job_id) == b"error"
    assert b"expired_before_start" in (await rigged.job(job_id))[b"error"]
    [letter] = await rigged.dead_letters()
    assert b"hello" in letter[b"fields"]
    await rigged.all_acked()


async def test_a_stopping_worker_leaves_waiting_messages_to_others(rig: RigMaker) -> None:
    runs = Runs()
    first = rig(registry=runs.registry("first"), identity=named("first"))
    await first.group()
    first.consumer.limits.set_limit(MODEL, 0, DOWN)
    first.start()
    jobs = await first.post(6)
    await waiting(first, 6)
    await first.stop()
    assert await wait_queues(first) == {"chat": 6}
    heir = rig(registry=runs.registry("heir"), identity=named("heir"))
    heir.start()
    assert await heir.ended(jobs, 5) == {b"done"}


async def test_waiting_messages_survive_the_death_of_all_workers(rig: RigMaker) -> None:
    """No worker renews the messages, so they are taken over like those of a dead worker."""
    rigged = rig(registry=Runs().registry("a"), identity=named("a", 400))
    await rigged.group()
    jobs = await rigged.post(3)
    ids = await rigged.take(3)
    await rigged.client.xclaim(
        rigged.keys.queue, "workers", f"{WAIT_QUEUE_PREFIX}chat", 0, ids, idle=500, justid=True
    )
    assert await rigged.consumer.recovery.run_once() == 3
    assert await rigged.ended(jobs) == {b"done"}


async def test_a_failed_put_delays_a_message_by_at_most_a_lease(
    rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    rigged = rig(registry=runs.registry("a"), identity=named("a", 400))
    await rigged.group()
    rigged.consumer.limits.set_limit(MODEL, 0, DOWN)
    put, failures = rigged.consumer.wait_queue._wait_queues.put, []

    async def fails(task: str, ids: Any) -> None:
        if len(failures) < 3:
            failures.append(ids)
            raise RedisConnectionError("reset")
        await put(task, ids)

    monkeypatch.setattr(rigged.consumer.wait_queue._wait_queues, "put", fails)
    rigged.start(recover=True)
    jobs = await rigged.post(5)
    await waiting(rigged, 5)
    assert failures
    rigged.consumer.limits.set_limit(MODEL, 1)
    assert await rigged.ended(jobs) == {b"done"}
    assert Counter(runs.jobs) == Counter(jobs)


async def test_errors_while_taking_and_renewing_are_retried(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.wait_queue._BACKOFF_S", 0.01)
    monkeypatch.setattr("worker.queue.wait_queue.POLL_S", 0.02)
    runs = Runs()
    rigged = fake_rig(
        registry=runs.registry("a"), identity=named("a", 300), task_limits={"chat": 1}
    )
    calls: Counter[str] = Counter()
    for name in ("take", "count", "touch"):
        method = getattr(rigged.consumer.wait_queue._wait_queues, name)

        async def flaky(*args: Any, name: str = name, method: Any = method) -> Any:
            calls[name] += 1
            if calls[name] % 2:
                raise (RedisConnectionError("reset") if calls[name] % 4 == 1 else ValueError("?"))
            return await method(*args)

        monkeypatch.setattr(rigged.consumer.wait_queue._wait_queues, name, flaky)
    rigged.start()
    jobs = await rigged.post(6)
    assert await rigged.ended(jobs) == {b"done"}
    await eventually(lambda: calls["count"] > 3)
    assert runs.most == 1


async def test_groups_share_local_and_global_slots(rig: RigMaker) -> None:
    runs = Runs()
    workers = [
        rig(
            registry=runs.registry(name),
            identity=named(name),
            max_inflight=4,
            task_limits={"chat+plan": 2, "rag": 4},
            task_limits_global={"chat+plan+code": 3},
        )
        for name in ("a", "b")
    ]
    await workers[0].group()
    limited = await workers[0].post(20, task="chat") + await workers[0].post(20, task="plan")
    for each in workers:
        each.start()
    assert await workers[0].ended(limited) == {b"done"}
    assert 1 <= runs.most <= 3
    assert Counter(runs.jobs) == Counter(limited)
    key = workers[0].keys.running("chat+plan+code")
    await eventually(lambda: workers[0].slots.busy == workers[1].slots.busy == 0)
    assert await workers[0].client.zcard(key) == 0
    await workers[0].all_acked()


async def test_limits_that_change_all_the_time(real_rig: RigMaker) -> None:
    runs = Runs()
    workers = [
        real_rig(registry=runs.registry(name), identity=named(name), max_inflight=3)
        for name in ("a", "b")
    ]
    await workers[0].group()
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
