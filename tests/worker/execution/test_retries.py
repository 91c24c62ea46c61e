"""Retries: which failures are retried, how often, and after which delay. `NotNow` postpones a job
without limit and without using up an attempt."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from typing import Any

import pytest

import sluice.common.jobs.scripts
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.options import Backoff, JobOptions
from sluice.common.jobs.store import JobOutcome, Lease, WorkerIdentity
from sluice.worker.errors import JobError, NotNow, TransientError
from sluice.worker.execution.context import EventBuffer, JobContext
from sluice.worker.execution.executor import Outcome
from sluice.worker.execution.outcome import (
    LONGEST_NOT_NOW_S,
    NO_HANDLER_OPTIONS,
    NO_REQUEST_OPTIONS,
    SHORTEST_NOT_NOW_S,
    Failure,
    HandlerOptions,
    RequestOptions,
    Retry,
    WorkerDefaults,
    decide_failure,
)
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, registry_of

QUICK = Backoff(0.001, max_s=0.002)
#: Less than a third of a lease, however slow this machine is.
SOON_MS = 9000


class Flaky:
    """A handler that fails a number of times per job."""

    def __init__(self, error: BaseException, failures: int = 10**9) -> None:
        self.error = error
        self.failures = failures
        self.tries: Counter[str] = Counter()

    async def __call__(self, context: Any, payload: Any) -> int:
        self.tries[context.job_id] += 1
        if self.tries[context.job_id] <= self.failures:
            raise self.error
        return int(context.attempt)


class Quota(JobError):
    kind = "quota_exceeded"


class Overloaded(TransientError):
    kind = "overloaded"


class Busy(JobError):
    """Neither transient nor permanent."""

    kind = "busy"
    permanent = False


class Loading(NotNow):
    kind = "model_unavailable"


def types_of(attempts: int) -> list[bytes]:
    return [b"queued", *([b"running", b"retry"] * attempts)[:-1], b"error"]


# -- decisions --------------------------------------------------------------------------------


def decide(
    error: BaseException,
    attempt: int = 1,
    *,
    asks: RequestOptions = NO_REQUEST_OPTIONS,
    handler: HandlerOptions = NO_HANDLER_OPTIONS,
    worker: WorkerDefaults | None = None,
) -> Any:
    lease = Lease("j", "1-0", attempt, "t")
    context = JobContext(lease, "chat", EventBuffer(lease, None))  # type: ignore[arg-type]
    return decide_failure(
        context, Failure.from_error(error), asks, handler, worker or WorkerDefaults()
    )


async def test_the_backoff_of_the_request_takes_precedence() -> None:
    request, handler, worker = (Backoff(seconds, jitter=0) for seconds in (1, 2, 3))
    error, defaults = ConnectionError(), WorkerDefaults(backoff=worker)
    assert decide(error, worker=defaults).delay_ms == 3000
    options = HandlerOptions(backoff=handler)
    assert decide(error, worker=defaults, handler=options).delay_ms == 2000
    asks = RequestOptions(options=JobOptions(backoff=request))
    assert decide(error, worker=defaults, handler=options, asks=asks).delay_ms == 1000


async def test_released_attempts_do_not_count() -> None:
    backoff = JobOptions(backoff=Backoff(1, jitter=0))
    assert isinstance(decide(ConnectionError(), 3, asks=RequestOptions(3, released=0)), JobOutcome)
    retry = decide(ConnectionError(), 3, asks=RequestOptions(3, released=1, options=backoff))
    assert isinstance(retry, Retry)
    assert retry.delay_ms == 2000  # it is the second failure


@pytest.mark.parametrize(
    ("error", "delay_ms"),
    [
        (TransientError("busy", retry_after_s=0), 0),
        (TransientError("busy", retry_after_s=0.25), 250),
        (TransientError("busy", retry_after_s=7), 7000),
        (TransientError("busy", retry_after_s=-3), 0),
        (TransientError("busy", retry_after_s=90), 90_000),
        (NotNow(retry_after_s=5), 5000),
        (NotNow(retry_after_s=0), SHORTEST_NOT_NOW_S * 1000),
        (NotNow(retry_after_s=3600), 3_600_000),
        (NotNow(retry_after_s=-1), 100),
    ],
)
async def test_an_error_may_set_the_delay(error: Exception, delay_ms: int) -> None:
    retry = decide(error, worker=WorkerDefaults(backoff=Backoff(1, max_s=2)))
    assert (retry.delay_ms, retry.free) == (delay_ms, isinstance(error, NotNow))


async def test_a_postponed_job_always_has_another_attempt() -> None:
    for attempt, released in ((1, 0), (7, 0), (1000, 998), (2, 1)):
        found = decide(NotNow("loading"), attempt, asks=RequestOptions(1, released))
        assert isinstance(found, Retry)
        assert found.free
        error = json.loads(found.error)
        assert error == {"kind": "not_now", "message": "loading", "attempt": attempt}


async def test_the_delay_of_a_postponed_job_grows_up_to_a_limit() -> None:
    patient = JobOptions(backoff=Backoff(1.0, 2.0, max_s=86_400, jitter=0))
    waits = [
        decide(NotNow(), released + 1, asks=RequestOptions(None, released, patient)).delay_ms / 1000
        for released in (0, 1, 2, 5, 9, 900)
    ]
    assert waits == [1, 2, 4, 32, LONGEST_NOT_NOW_S, LONGEST_NOT_NOW_S]
    asks = RequestOptions(None, 0, JobOptions(backoff=Backoff(0.0, 1.0, max_s=0.0)))
    assert decide(NotNow(), asks=asks).delay_ms == SHORTEST_NOT_NOW_S * 1000


async def test_other_failures_are_retried_if_max_attempts_is_given() -> None:
    once = decide(Busy("slot"))
    assert isinstance(once, JobOutcome)
    assert once.dead_letter
    assert json.loads(once.error)["kind"] == "busy"
    assert isinstance(decide(Busy("slot"), asks=RequestOptions(3)), Retry)
    assert isinstance(decide(Busy("slot"), handler=HandlerOptions(max_attempts=2)), Retry)
    assert isinstance(decide(Busy("slot"), 3, asks=RequestOptions(3)), JobOutcome)
    permanent = decide(JobError("bad"), asks=RequestOptions(3))
    assert isinstance(permanent, JobOutcome)
    assert not permanent.dead_letter


# -- which failures ---------------------------------------------------------------------------


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("error", "asked", "attempts"),
    [
        (ConnectionError("away"), None, 3),
        (ConnectionResetError("reset"), None, 3),
        (TimeoutError("slow"), None, 3),
        (asyncio.TimeoutError("slow"), None, 3),
        (TransientError("busy"), None, 3),
        (Overloaded("busy"), None, 3),
        (ValueError("bad"), None, 1),
        (ValueError("bad"), "request", 4),
        (ValueError("bad"), "handler", 4),
        (OSError("disk"), None, 1),
        (OSError("disk"), "request", 4),
        (SystemExit(1), None, 1),
        (SystemExit(1), "handler", 4),
        (asyncio.CancelledError(), None, 1),
        (asyncio.CancelledError(), "request", 4),
        (JobError("no"), "request", 1),
        (Quota("no more"), "handler", 1),
    ],
    ids=repr,
)
async def test_transient_errors_are_retried_others_on_request(
    make_worker: MakeWorker, error: BaseException, asked: str | None, attempts: int
) -> None:
    """A JobError is never retried, and leaves no dead letter."""
    registry = registry_of(Flaky(error), "chat", max_attempts=4 if asked == "handler" else None)
    worker = make_worker(registry=registry, terms=WorkerDefaults(3, backoff=QUICK))
    job_id = await worker.run_job(b"error", max_attempts=4 if asked == "request" else None)
    assert await worker.types(job_id) == types_of(attempts)
    assert (await worker.error(job_id))["attempt"] == attempts
    is_final = isinstance(error, JobError) and not isinstance(error, TransientError)
    assert len(await worker.dead_letters()) == (0 if is_final else 1)


@pytest.mark.fakeredis_only
async def test_permanent_failures_are_not_retried(make_worker: MakeWorker) -> None:
    """Unknown tasks and results that are not JSON."""
    worker = make_worker(lambda context, payload: object())
    for task, kind, message in (
        ("chat", "invalid_result", ""),
        ("plan", "unknown_task", "no handler for task 'plan'"),
    ):
        job_id = await worker.run_job(b"error", task=task, max_attempts=5)
        error = await worker.error(job_id)
        assert error["kind"] == kind
        assert message in error["message"]
    assert "chat" in error["message"]  # the tasks with a handler
    assert await worker.dead_letters() == []


async def test_max_attempts_of_the_request_takes_precedence(make_worker: MakeWorker) -> None:
    flaky = Flaky(ConnectionError("away"))
    worker = make_worker(registry=registry_of(flaky, "chat", max_attempts=2))
    for asked, attempts in ((1, 1), (None, 2), (4, 4)):
        job_id = await worker.run_job(b"error", max_attempts=asked)
        assert flaky.tries[job_id] == attempts


# -- events and dead letters ------------------------------------------------------------------


async def test_a_job_that_succeeds_in_the_end(make_worker: MakeWorker) -> None:
    """The events of failed attempts are kept."""

    async def handler(context: Any, payload: Any) -> int:
        await context.emit("note", {"attempt": context.attempt})
        if context.attempt < 3:
            raise TransientError("busy")
        return int(context.attempt)

    worker = make_worker(handler)
    job_id = await worker.run_job()
    assert await worker.result(job_id) == 3
    assert (await worker.job(job_id))[b"error"] == b""
    attempt = [b"running", b"note", b"retry"]
    assert await worker.types(job_id) == [b"queued", *attempt, *attempt, *attempt[:2], b"done"]
    assert await worker.dead_letters() == []
    await worker.all_acked()
    assert not await worker.client.exists(worker.keys.lease(job_id))


async def test_the_retry_event_and_the_delay(make_worker: MakeWorker) -> None:
    worker = make_worker(Flaky(Overloaded("come back later", retry_after_s=1800)))
    worker.start()
    [job_id] = await worker.post(ttl_s=60)
    await worker.last_event(job_id, b"retry")
    assert (await worker.job(job_id))[b"status"] == b"queued"
    kind, step, data = (await worker.parsed_events(job_id))[-1]
    assert (kind, step) == ("retry", "worker.retry")
    assert isinstance(data.pop("ms"), int)
    assert data == {
        "attempt": 1,
        "delay_ms": 1_800_000,
        "max_attempts": 5,
        "kind": "overloaded",
        "message": "come back later",
    }
    assert await worker.pending() == 1
    await eventually(lambda: worker.slots.free == 4)  # it occupies no slot while it waits


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("retry_after_s", [math.inf, math.nan, 1e30, "5", "soon", [1]])
async def test_an_invalid_delay_does_not_leave_the_job_pending(
    make_worker: MakeWorker, retry_after_s: Any
) -> None:
    """The value may come from a Retry-After header."""
    worker = make_worker(Flaky(TransientError("busy", retry_after_s=retry_after_s)))
    outcome, job_id = await worker.execute()
    assert outcome in (Outcome.RETRY, Outcome.ERROR)
    assert (await worker.types(job_id))[-1] in (b"retry", b"error")


# -- several workers --------------------------------------------------------------------------


async def test_another_worker_takes_over_after_the_delay(make_worker: MakeWorker) -> None:
    """The first worker dies while the job waits: its message is claimed, the delay respected."""
    flaky = Flaky(TransientError("busy", retry_after_s=0.3), failures=1)
    first = make_worker(flaky)
    first.executor._defer = lambda *message: None  # as if it had died
    first.start()
    [job_id] = await first.post()
    await first.last_event(job_id, b"retry")
    message_id = (await first.pending_entry())["message_id"].decode()
    await first.claim_for("c1", message_id, 60_000)
    heir = make_worker(flaky, identity=first.worker._replace(consumer="heir"))
    heir.start(recover=True)
    assert await heir.settled(job_id) == b"done"
    events = await heir.events(job_id)
    [failed_at, begun_at] = [int(event[b"ts"]) for event in events[2:4]]
    assert 300 <= begun_at - failed_at < SOON_MS
    assert await heir.types(job_id) == [b"queued", b"running", b"retry", b"running", b"done"]
    assert json.loads(events[3][b"data"]) == {"attempt": 2}
    await heir.all_acked()


@pytest.mark.real_redis
async def test_many_instantly_failing_jobs_do_not_starve_others(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="sluice.worker")
    running = most = failures = failures_when_good_ended = 0

    async def handler(context: Any, payload: Any) -> None:
        nonlocal running, most, failures, failures_when_good_ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if payload.get("fails"):
            failures += 1
            raise TransientError("again", retry_after_s=0)
        failures_when_good_ended = failures

    eager = WorkerIdentity("workers", "c1", 30_000, 600, max_attempts=15)
    worker = make_worker(handler, identity=eager, max_inflight=4)
    bad = await worker.post(30, payload=b'{"fails":1}')
    good = await worker.post(10)
    worker.start()
    assert await worker.ended([*good, *bad]) == {b"done", b"error"}
    assert failures == 450
    assert failures_when_good_ended < 225  # they did not wait for the end of the others
    assert most <= 4
    for job_id in bad[::10]:
        assert await worker.types(job_id) == types_of(15)
    await worker.all_acked()
    assert len(await worker.dead_letters()) == 30
    assert len(worker.consumer.deferred) == 0


# -- NotNow -----------------------------------------------------------------------------------


async def test_a_job_is_postponed_until_it_can_run(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """More often than it has attempts; afterwards it still has all of them."""
    caplog.set_level(logging.INFO)

    async def handler(context: Any, payload: Any) -> int:
        if context.attempt <= 4:
            raise Loading("the model is loading", retry_after_s=0.01)
        if context.attempt == 5:
            raise TransientError("for once")
        return int(context.attempt)

    worker = make_worker(handler)
    job_id = await worker.run_job(max_attempts=2)
    assert await worker.result(job_id) == 6
    retries = [data for kind, _, data in await worker.parsed_events(job_id) if kind == "retry"]
    assert [data["kind"] for data in retries] == ["model_unavailable"] * 4 + ["transient_error"]
    assert retries[0]["message"] == "the model is loading"
    assert retries[0]["delay_ms"] == 100
    counters = worker.consumer.counters.for_task("chat")
    assert (counters.postponed, counters.retried, counters.succeeded) == (4, 1, 1)
    lines = [record for record in caplog.records if "postponed" in record.message]
    assert {record.levelno for record in lines} == {logging.INFO}


@pytest.mark.parametrize("error", [NotNow("later", retry_after_s=60), ConnectionError()])
async def test_a_waiting_job_occupies_no_slot(make_worker: MakeWorker, error: Any) -> None:
    """Neither a postponed job nor one that waits for its next attempt; both can be canceled."""

    async def handler(context: Any, payload: Any) -> None:
        if payload.get("waits"):
            raise error

    limits = {"task_limits": {"chat": 1}, "task_limits_global": {"chat": 1}}
    worker = make_worker(handler, max_inflight=1, **limits)
    worker.start()
    slow = JobOptions(backoff=Backoff(60, jitter=0)).to_json()
    [waiting] = await worker.post(payload=b'{"waits":1}', options=slow)
    await worker.last_event(waiting, b"retry")
    assert await worker.ended(await worker.post(5)) == {b"done"}
    assert (await worker.job(waiting))[b"status"] == b"queued"
    assert await worker.cancel(waiting) is Answer.CANCELED
    await worker.all_acked()


# -- the script -------------------------------------------------------------------------------


@pytest.mark.fakeredis_only
async def test_a_free_retry_does_not_count_and_leaves_no_error(make_worker: MakeWorker) -> None:
    worker = make_worker()
    lease = await worker.running()
    for _ in range(2):  # the second as after a lost reply
        assert await worker.retry(lease, 5000, free=True) is Answer.OK
    held = await worker.held(lease.job_id)
    assert held[b"released"] == b"1"
    assert not {b"first_error", b"last_error"} & set(held)
    assert await worker.types(lease.job_id) == [b"queued", b"running", b"retry"]
    again = await worker.again(lease, "t2")
    await worker.retry(again, 0, b'{"kind":"real"}')
    held = await worker.held(lease.job_id)
    assert (held[b"released"], held[b"first_error"]) == (b"1", b'{"kind":"real"}')


@pytest.mark.real_redis
async def test_the_events_of_a_postponed_job_are_capped(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.common.jobs.scripts, "MAX_EVENTS_PER_JOB", 100)
    worker = make_worker()
    lease = await worker.running()
    events = worker.keys.events(lease.job_id)
    pipe = worker.client.pipeline(transaction=False)
    for _ in range(400):
        pipe.xadd(events, {"type": "note", "ts": "1", "step": "s", "data": "{}"})
    await pipe.execute()
    await worker.retry(lease, 0, free=True)
    assert await worker.client.xlen(events) < 300
    assert (await worker.types(lease.job_id))[-1] == b"retry"
