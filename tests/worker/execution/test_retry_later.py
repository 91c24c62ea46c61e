"""`NotNow`: the job is postponed, without limit and without using up an attempt."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.jobs.options import Backoff, JobOptions
from common.jobs.scripts import MAX_EVENTS_PER_JOB
from common.jobs.store import JobOutcome, Lease
from tests.conftest import eventually
from tests.worker.kit import RigMaker, registry_of
from worker.errors import JobError, NotNow, TransientError
from worker.execution.context import EventBuffer, JobContext
from worker.execution.outcome import (
    LONGEST_NOT_NOW_S,
    NO_HANDLER_OPTIONS,
    SHORTEST_NOT_NOW_S,
    Failure,
    HandlerOptions,
    RequestOptions,
    Retry,
    WorkerDefaults,
    decide_failure,
)


class Busy(JobError):
    """Neither transient nor permanent."""

    kind = "busy"
    permanent = False


class Loading(NotNow):
    kind = "model_unavailable"


def decide(error: BaseException, attempt: int = 1, **changes: Any) -> Any:
    lease = Lease("j", "1-0", attempt, "t")
    context = JobContext(lease, "chat", EventBuffer(lease, None))  # type: ignore[arg-type]
    asks = changes.get("asks", RequestOptions())
    handler = changes.get("handler", NO_HANDLER_OPTIONS)
    return decide_failure(
        context, Failure.from_error(error), asks, handler, WorkerDefaults(max_attempts=2)
    )


# -- decisions ---------------------------------------------------------------------------------


async def test_there_is_always_another_attempt() -> None:
    for attempt, released in ((1, 0), (7, 0), (1000, 998), (2, 1)):
        found = decide(NotNow("loading"), attempt, asks=RequestOptions(1, released))
        assert isinstance(found, Retry)
        assert found.free
        error = json.loads(found.error)
        assert error == {"kind": "not_now", "message": "loading", "attempt": attempt}


async def test_a_failure_that_counts_is_not_free() -> None:
    found = decide(TransientError("once"))
    assert isinstance(found, Retry)
    assert not found.free


@pytest.mark.parametrize(
    ("retry_after_s", "delay_s"), [(5, 5), (0, SHORTEST_NOT_NOW_S), (3600, 3600), (-1, 0.1)]
)
async def test_the_handler_may_set_the_delay(retry_after_s: float, delay_s: float) -> None:
    assert decide(NotNow(retry_after_s=retry_after_s)).delay_ms == round(delay_s * 1000)


async def test_otherwise_the_delay_grows_up_to_a_limit() -> None:
    patient = JobOptions(backoff=Backoff(1.0, 2.0, max_s=86_400, jitter=0))
    waits = [
        decide(NotNow(), released + 1, asks=RequestOptions(None, released, patient)).delay_ms / 1000
        for released in (0, 1, 2, 5, 9, 900)
    ]
    assert waits == [1, 2, 4, 32, LONGEST_NOT_NOW_S, LONGEST_NOT_NOW_S]
    hasty = JobOptions(backoff=Backoff(0.0, 1.0, max_s=0.0))
    assert (
        decide(NotNow(), asks=RequestOptions(None, 0, hasty)).delay_ms == SHORTEST_NOT_NOW_S * 1000
    )


async def test_other_failures_are_retried_if_max_attempts_is_given() -> None:
    once = decide(Busy("slot"))
    assert isinstance(once, JobOutcome)
    assert once.dead_letter
    assert json.loads(once.error)["kind"] == "busy"
    assert isinstance(decide(Busy("slot"), asks=RequestOptions(3)), Retry)
    assert isinstance(decide(Busy("slot"), handler=HandlerOptions(max_attempts=2)), Retry)
    assert isinstance(decide(Busy("slot"), 3, asks=RequestOptions(3)), JobOutcome)
    hopeless = decide(JobError("bad"), asks=RequestOptions(3))
    assert isinstance(hopeless, JobOutcome)
    assert not hopeless.dead_letter


# -- jobs --------------------------------------------------------------------------------------


async def test_a_job_is_postponed_until_it_can_run(
    rig: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """More often than it has attempts; afterwards it still has all of them."""
    caplog.set_level(logging.INFO)
    fails: list[int] = []

    async def handler(context: Any, payload: Any) -> int:
        if context.attempt <= 4:
            raise Loading("the model is loading", retry_after_s=0.01)
        if len(fails) < 1:
            fails.append(context.attempt)
            raise TransientError("for once")
        return int(context.attempt)

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post(max_attempts=2)
    assert await rigged.settled(job_id) == b"done"
    assert (await rigged.job(job_id))[b"result"] == b"6"
    told = [(kind, data) for kind, _, data in await rigged.parsed_events(job_id) if kind == "retry"]
    assert [data["kind"] for _, data in told] == ["model_unavailable"] * 4 + ["transient_error"]
    assert told[0][1]["message"] == "the model is loading"
    assert told[0][1]["delay_ms"] == 100
    tally = rigged.consumer.counters.for_task("chat")
    assert (tally.postponed, tally.retried, tally.succeeded) == (4, 1, 1)
    lines = [record for record in caplog.records if "postponed" in record.message]
    assert {record.levelno for record in lines} == {logging.INFO}


async def test_a_postponed_attempt_is_not_the_first_error_of_the_job(rig: RigMaker) -> None:
    """Only failures that count are kept as the first error."""

    async def handler(context: Any, payload: Any) -> None:
        if context.attempt == 1:
            raise Loading("loading", retry_after_s=0.01)
        raise TransientError(f"attempt {context.attempt}", retry_after_s=0.01)

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post(max_attempts=2)
    assert await rigged.settled(job_id) == b"error"
    [letter] = await rigged.dead_letters()
    assert json.loads(letter[b"first_error"])["message"] == "attempt 2"
    assert json.loads(letter[b"last_error"])["message"] == "attempt 3"
    assert letter[b"attempts"] == b"3"


async def test_a_postponed_job_can_be_canceled(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        raise NotNow("never", retry_after_s=3600)

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post()

    async def waits() -> bool:
        return (await rigged.types(job_id))[-1] == b"retry"

    await eventually(waits)
    assert await rigged.cancel(job_id) is Answer.CANCELED
    assert await rigged.settled(job_id) == b"canceled"
    await rigged.all_acked()


async def test_a_job_canceled_meanwhile_ends(rig: RigMaker) -> None:
    entered = asyncio.Event()

    async def handler(context: Any, payload: Any) -> None:
        entered.set()
        await context.wait_for_cancel()
        raise NotNow("too late")

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(entered.wait(), 10)
    await rigged.cancel(job_id)
    assert await rigged.settled(job_id) == b"canceled"


async def test_a_postponed_job_occupies_no_slot(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        if payload.get("not_now"):
            raise NotNow("later", retry_after_s=60)

    rigged = rig(
        registry=registry_of(handler, "chat"),
        max_inflight=1,
        task_limits={"chat": 1},
        task_limits_global={"chat": 1},
    )
    rigged.start()
    [waiting] = await rigged.post(payload=b'{"not_now":1}')
    others = await rigged.post(5)
    assert await rigged.ended(others) == {b"done"}
    assert (await rigged.job(waiting))[b"status"] == b"queued"


# -- the script --------------------------------------------------------------------------------


async def test_the_attempt_does_not_count_and_leaves_no_error(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    lease = await rigged.running()
    for _ in range(2):  # the second as after a lost reply
        assert await rigged.retry(lease, 5000, free=True) is Answer.OK
    held = await rigged.held(lease.job_id)
    assert held[b"released"] == b"1"
    assert not {b"first_error", b"last_error"} & set(held)
    assert await rigged.types(lease.job_id) == [b"queued", b"running", b"retry"]
    again = await rigged.again(lease, "t2")
    await rigged.retry(again, 0, b'{"kind":"real"}')
    held = await rigged.held(lease.job_id)
    assert (held[b"released"], held[b"first_error"]) == (b"1", b'{"kind":"real"}')


async def test_the_events_of_a_postponed_job_are_capped(real_rig: RigMaker) -> None:
    rigged = real_rig()
    lease = await rigged.running()
    events = rigged.keys.events(lease.job_id)
    pipe = rigged.client.pipeline(transaction=False)
    for _ in range(MAX_EVENTS_PER_JOB + 2000):
        pipe.xadd(events, {"type": "note", "ts": "1", "step": "s", "data": "{}"})
    await pipe.execute()
    await rigged.retry(lease, 0, free=True)
    assert await rigged.client.xlen(events) < MAX_EVENTS_PER_JOB + 500
    assert (await rigged.types(lease.job_id))[-1] == b"retry"
