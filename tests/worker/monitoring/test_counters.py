"""The counters of a worker: every outcome is counted once."""

from __future__ import annotations

import time
import timeit
from typing import Any

import pytest

from common.contracts.jobs import TTL_MAX_S, Task
from common.contracts.workers import (
    HISTOGRAM_BOUNDS,
    TASK_LABELS,
    UNKNOWN_TASK,
    TaskCounter,
    TaskHistogram,
)
from common.observability.histogram import Histogram
from tests.conftest import eventually
from tests.worker.kit import RigMaker, registry_of
from worker.errors import JobError, TransientError
from worker.execution.outcome import Outcome
from worker.monitoring.counters import Counters, TaskCounters
from worker.queue.messages import Message

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
    chat = counters.for_task("chat")
    assert (chat.started, sum(chat.queue_wait.counts), chat.queue_wait.sum) == (2, 1, 3.0)


@pytest.mark.parametrize("message_id", ["0-1", "x", "", at(TTL_MAX_S + 1)])
def test_ids_without_a_time_do_not_count_for_the_waiting_time(
    counters: Counters, message_id: str
) -> None:
    assert counters.record_start("chat", message_id, 1) == 0.0
    counters.record_end(Outcome.DONE, "chat", 0.0, 1, 0.5)
    view: Any = counters.view()["chat"]
    assert (view["started"], view["succeeded"]) == (1, 1)
    assert set(view) & {spread.value for spread in TaskHistogram} == {"run", "attempts"}


def test_a_clock_ahead_gives_no_negative_waiting_time(counters: Counters) -> None:
    counters.record_start("chat", at(-5), 1)
    assert counters.for_task("chat").queue_wait.view() == {"counts": [1] + [0] * 18, "sum": 0.0}


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


def counted(rigged: Any, task: str = "chat") -> dict[str, int]:
    view = rigged.consumer.counters.view([task])[task]
    return {count.value: view[count.value] for count in TaskCounter if view[count.value]}


async def test_jobs_that_succeed(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.emit("message", {})
        await context.emit("message", {})

    rigged = fake_rig(handler)
    rigged.start()
    jobs = await rigged.post(5)
    await rigged.ended(jobs)
    await eventually(lambda: counted(rigged) == {"started": 5, "succeeded": 5})
    chat = rigged.consumer.counters.for_task("chat")
    assert sum(chat.queue_wait.counts) == sum(chat.end_to_end.counts) == 5
    assert rigged.executor.events_emitted == 10


async def test_a_job_that_fails_for_good(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        raise JobError("no")

    rigged = fake_rig(handler)
    await rigged.execute()
    assert counted(rigged) == {"started": 1, "failed": 1}


async def test_a_job_that_is_retried(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        raise TransientError("not yet")

    rigged = fake_rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"error"
    expected = {"started": 5, "retried": 4, "failed": 1, "deadlettered": 1}
    await eventually(lambda: counted(rigged) == expected)
    assert rigged.consumer.counters.view()["chat"]["attempts"] == {
        "counts": [0, 0, 0, 1, 0, 0],
        "sum": 5,
    }


async def test_a_job_that_is_canceled(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.wait_for_cancel()

    rigged = fake_rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    await eventually(lambda: rigged.slots.busy == 1 and rigged.executor.running)
    await rigged.cancel(job_id)
    assert await rigged.settled(job_id) == b"canceled"
    await eventually(lambda: counted(rigged) == {"started": 1, "canceled": 1})


async def test_a_job_that_is_released(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.wait_for_cancel()

    rigged = fake_rig(handler)
    rigged.start()
    await rigged.post()
    await eventually(lambda: rigged.executor.running)
    await rigged.stop(0.05)
    assert counted(rigged) == {"started": 1, "released": 1}


async def test_messages_without_a_job(fake_rig: RigMaker) -> None:
    rigged = fake_rig(registry=registry_of(lambda context, payload: None))
    await rigged.group()
    await rigged.client.xadd(rigged.keys.queue, {"task": "chat"})
    await rigged.client.xadd(rigged.keys.queue, {"job_id": "gone", "task": "chat"})
    await rigged.client.xadd(rigged.keys.queue, {"job_id": "gone-too", "task": "dance"})
    await rigged.claimer.claim(await rigged.messages())
    assert counted(rigged) == {"deadlettered": 2, "expired": 1}
    assert counted(rigged, UNKNOWN_TASK) == {"deadlettered": 1}


async def test_a_job_that_kills_its_worker_each_time(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    attempt = await rigged.attempt()
    lease = rigged.keys.lease(attempt.lease.job_id)
    await rigged.client.hset(lease, mapping={"attempt": 5, "deadline_ms": 1})
    message = (await rigged.client.xrange(rigged.keys.queue))[0]
    await rigged.claimer.claim([Message.read(message[0].decode(), message[1])])
    assert counted(rigged) == {"failed": 1, "deadlettered": 1}


async def test_messages_that_were_taken_over(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    await rigged.group()
    await rigged.post()
    await rigged.client.xreadgroup(rigged.worker.group, "other", {rigged.keys.queue: ">"})
    entry = (await rigged.client.xrange(rigged.keys.queue))[0][0]
    idle = ("XCLAIM", rigged.keys.queue, rigged.worker.group, "other", 0, entry)
    await rigged.client.execute_command(*idle, "IDLE", 10_000_000)
    assert await rigged.consumer.recovery.run_once() == 1
    assert counted(rigged)["reclaimed"] == 1
