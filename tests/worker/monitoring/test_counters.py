"""The counters of a worker: every outcome is counted once."""

from __future__ import annotations

import time
import timeit
from collections import Counter
from typing import Any

import pytest

from sluice.common.contracts.jobs import TTL_MAX_S, Task
from sluice.common.contracts.workers import (
    HISTOGRAM_BOUNDS,
    TASK_LABELS,
    UNKNOWN_TASK,
    TaskCounter,
    TaskHistogram,
)
from sluice.common.observability.histogram import Histogram
from sluice.worker.errors import JobError, TransientError
from sluice.worker.execution.outcome import Outcome
from sluice.worker.monitoring.counters import Counters, TaskCounters
from sluice.worker.queue.messages import Message
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, registry_of

pytestmark = pytest.mark.fakeredis_only

NOW_S = 1_760_000_000.0


def at(seconds_ago: float) -> str:
    return f"{int((NOW_S - seconds_ago) * 1000)}-0"


@pytest.fixture
def counters() -> Counters:
    return Counters(lambda: NOW_S)


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.view() == {"counts": [2, 2, 1], "sum": 8.0}


def test_only_a_first_attempt_counts_for_the_waiting_time(counters: Counters) -> None:
    counters.record_start("chat", at(3), 1)
    counters.record_start("chat", at(9), 2)
    counters.record_start("chat", at(-5), 1)  # a clock ahead: not negative
    chat = counters.for_task("chat")
    assert (chat.started, sum(chat.queue_wait.counts), chat.queue_wait.sum) == (3, 2, 3.0)


@pytest.mark.parametrize("message_id", ["0-1", "x", "", at(TTL_MAX_S + 1)])
def test_ids_without_a_time_do_not_count_for_the_waiting_time(
    counters: Counters, message_id: str
) -> None:
    assert counters.record_start("chat", message_id, 1) == 0.0
    counters.record_end(Outcome.DONE, "chat", 0.0, 1, 0.5)
    view: Any = counters.view()["chat"]
    assert (view["started"], view["succeeded"]) == (1, 1)
    assert set(view) & {spread.value for spread in TaskHistogram} == {"run", "attempts"}


def test_tasks_outside_the_contract_share_a_label(counters: Counters) -> None:
    for number in range(1000):
        counters.record_start(f"task-{number}", at(1), 1)
    assert set(counters.view()) == {UNKNOWN_TASK}
    assert counters.for_task("anything").started == 1000
    assert set(TASK_LABELS) == {task.value for task in Task} | {UNKNOWN_TASK}


def test_counters_of_the_end_of_an_attempt(counters: Counters) -> None:
    queued_s = counters.record_start("chat", at(10), 1)
    counters.record_end(Outcome.RETRY, "chat", queued_s, 1, 2.0)
    queued_s = counters.record_start("chat", at(10), 2)
    counters.record_end(Outcome.ERROR, "chat", queued_s, 2, 4.0, True)
    queued_s = counters.record_start("chat", at(1), 1)
    counters.record_end(Outcome.DONE, "chat", queued_s, 1, 0.1)
    view: Any = counters.view()["chat"]
    counts = {count.value: view[count.value] for count in TaskCounter}
    assert counts == {
        **dict.fromkeys(counts, 0),
        "started": 3,
        "succeeded": 1,
        "failed": 1,
        "retried": 1,
        "deadlettered": 1,
    }
    assert view["run"]["sum"] == pytest.approx(6.1)
    assert sum(view["run"]["counts"]) == 3
    assert view["end_to_end"]["sum"] == pytest.approx(11)
    assert view["attempts"] == {"counts": [1, 1, 0, 0, 0, 0], "sum": 3.0}
    assert counters.view()["chat"] == view, "looking changes nothing"


def test_handled_tasks_are_reported_from_the_beginning(counters: Counters) -> None:
    assert counters.view() == {}
    view: Any = counters.view(["chat", "embed"])
    assert set(view) == {"chat", "embed"}
    assert set(view["chat"].values()) == {0}


def test_every_name_of_the_contract_is_counted() -> None:
    counters = TaskCounters()
    assert all(hasattr(counters, member.value) for member in (*TaskCounter, *TaskHistogram))
    assert set(HISTOGRAM_BOUNDS) == set(TaskHistogram)
    assert all(list(bounds) == sorted(set(bounds)) for bounds in HISTOGRAM_BOUNDS.values())


def test_counting_is_cheap() -> None:
    """The bound is generous, because the machine may be busy. The docs have a measured value."""
    counters, message_id = Counters(), f"{int(time.time() * 1000)}-0"

    def job() -> None:
        queued_s = counters.record_start("chat", message_id, 1)
        counters.record_end(Outcome.DONE, "chat", queued_s, 1, 0.01)

    assert min(timeit.repeat(job, number=2000, repeat=10)) / 2000 < 20e-6


# -- in a worker -----------------------------------------------------------------------------


def counted(worker: Any, task: str = "chat") -> dict[str, int]:
    view = worker.consumer.counters.view([task])[task]
    return {count.value: view[count.value] for count in TaskCounter if view[count.value]}


async def test_every_end_of_a_job_is_counted(make_worker: MakeWorker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        for _ in range(2):
            await context.emit("message", {})
        if payload.get("fails"):
            raise JobError("no")
        if payload.get("transient"):
            raise TransientError("not yet")
        if payload.get("waits"):
            await context.wait_for_cancel()

    worker = make_worker(handler)
    expected: Counter[str] = Counter()

    async def are_counted(**more: int) -> None:
        expected.update(more)
        await eventually(lambda: counted(worker) == expected)

    for _ in range(3):
        await worker.run_job()
    await are_counted(started=3, succeeded=3)
    chat = worker.consumer.counters.for_task("chat")
    assert sum(chat.queue_wait.counts) == sum(chat.end_to_end.counts) == 3
    assert worker.executor.events_emitted == 6
    await worker.run_job(b"error", payload=b'{"fails":1}')
    await are_counted(started=1, failed=1)
    await worker.run_job(b"error", payload=b'{"transient":1}')
    await are_counted(started=5, retried=4, failed=1, deadlettered=1)
    attempts: Any = worker.consumer.counters.view()["chat"]["attempts"]
    assert attempts == {"counts": [4, 0, 0, 1, 0, 0], "sum": 9}
    [job_id] = await worker.post(payload=b'{"waits":1}')
    await worker.last_event(job_id, b"message")
    await worker.cancel(job_id)
    await are_counted(started=1, canceled=1)
    await worker.post(payload=b'{"waits":1}')
    await eventually(lambda: worker.executor.running)
    await worker.stop(0.05)
    await are_counted(started=1, released=1)


async def test_jobs_of_dead_workers_are_counted(make_worker: MakeWorker) -> None:
    """A message that was taken over, and a job that has used up its attempts."""
    worker = make_worker()
    attempt = await worker.attempt()
    lease = worker.keys.lease(attempt.lease.job_id)
    await worker.client.hset(lease, mapping={"attempt": 5, "deadline_ms": 1})
    message = (await worker.client.xrange(worker.keys.queue))[0]
    await worker.claimer.claim([Message.read(message[0].decode(), message[1])])
    assert counted(worker) == {"failed": 1, "deadlettered": 1}
    await worker.post()
    [message_id] = await worker.take(1, "other")
    await worker.claim_for("other", message_id, 10_000_000)
    assert await worker.consumer.recovery.run_once() == 1
    assert counted(worker)["reclaimed"] == 1


async def test_messages_without_a_job(make_worker: MakeWorker) -> None:
    worker = make_worker(registry=registry_of(lambda context, payload: None))
    await worker.group()
    await worker.client.xadd(worker.keys.queue, {"task": "chat"})
    await worker.client.xadd(worker.keys.queue, {"job_id": "gone", "task": "chat"})
    await worker.client.xadd(worker.keys.queue, {"job_id": "gone-too", "task": "dance"})
    await worker.claimer.claim(await worker.messages())
    assert counted(worker) == {"deadlettered": 2, "expired": 1}
    assert counted(worker, UNKNOWN_TASK) == {"deadlettered": 1}
