"""Retries: which failures are retried, how often, and after which delay."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.jobs.options import Backoff, JobOptions
from common.jobs.store import Claim, Lease, WorkerIdentity
from tests.conftest import eventually
from tests.worker.kit import RigMaker, registry_of
from worker.errors import JobError, TransientError
from worker.execution.context import EventBuffer, JobContext
from worker.execution.executor import Outcome
from worker.execution.outcome import (
    NO_HANDLER_OPTIONS,
    NO_REQUEST_OPTIONS,
    Failure,
    HandlerOptions,
    RequestOptions,
    Retry,
    WorkerDefaults,
    decide_failure,
)

QUICK = Backoff(0.001, max_s=0.002)
#: Less than a third of a lease, however slow this machine is.
SOON_MS = 9000


class Flaky:
    """A handler that fails a number of times per job."""

    def __init__(self, error: BaseException, failures: int = 10**9) -> None:
        self.error = error
        self.failures = failures
        self.tries: Counter[str] = Counter()

    async def handle(self, context: Any, payload: Any) -> int:
        self.tries[context.job_id] += 1
        if self.tries[context.job_id] <= self.failures:
            raise self.error
        return context.attempt  # type: ignore[no-any-return]


class Quota(JobError):
    kind = "quota_exceeded"


class Overloaded(TransientError):
    kind = "overloaded"


PASSING = {
    "connection": ConnectionError("away"),
    "reset": ConnectionResetError("reset"),
    "timeout": TimeoutError("slow"),
    "asyncio timeout": asyncio.TimeoutError("slow"),
    "transient": TransientError("busy"),
    "own transient": Overloaded("busy"),
}
LASTING = {
    "value": ValueError("bad"),
    "os": OSError("disk"),
    "exit": SystemExit(1),
    "own cancel": asyncio.CancelledError(),
}
FINAL = {"job error": JobError("no"), "own": Quota("no more")}


def types_of(attempts: int) -> list[bytes]:
    return [b"queued", *([b"running", b"retry"] * attempts)[:-1], b"error"]


# -- which failures ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", PASSING)
async def test_errors_that_often_pass_are_retried_by_default(fake_rig: RigMaker, name: str) -> None:
    flaky = Flaky(PASSING[name])
    rigged = fake_rig(flaky.handle, terms=WorkerDefaults(3, backoff=QUICK))
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"error"
    assert await rigged.types(job_id) == types_of(3)
    assert (await rigged.error(job_id))["attempt"] == 3
    assert len(await rigged.dead_letters()) == 1


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("asked", ["nobody", "request", "handler"])
async def test_other_errors_are_retried_only_with_max_attempts(
    fake_rig: RigMaker, name: str, asked: str
) -> None:
    flaky = Flaky(LASTING[name])
    registry = registry_of(flaky.handle, "chat", max_attempts=3 if asked == "handler" else None)
    rigged = fake_rig(registry=registry, terms=WorkerDefaults(5, backoff=QUICK))
    rigged.start()
    [job_id] = await rigged.post(max_attempts=3 if asked == "request" else None)
    assert await rigged.settled(job_id) == b"error"
    assert await rigged.types(job_id) == types_of(1 if asked == "nobody" else 3)
    assert len(await rigged.dead_letters()) == 1


@pytest.mark.parametrize("name", FINAL)
async def test_a_job_error_is_never_retried_and_leaves_no_dead_letter(
    rig: RigMaker, name: str
) -> None:
    flaky = Flaky(FINAL[name])
    rigged = rig(registry=registry_of(flaky.handle, "chat", max_attempts=5))
    rigged.start()
    [job_id] = await rigged.post(max_attempts=5)
    assert await rigged.settled(job_id) == b"error"
    assert await rigged.types(job_id) == types_of(1)
    assert await rigged.dead_letters() == []


async def test_permanent_failures_are_not_retried(fake_rig: RigMaker) -> None:
    """Unknown tasks and results that are not JSON."""
    rigged = fake_rig(lambda context, payload: object())
    rigged.start()
    jobs = [
        *(await rigged.post(max_attempts=5)),
        *(await rigged.post(max_attempts=5, task="plan")),
    ]
    assert await rigged.ended(jobs) == {b"error"}
    assert [(await rigged.error(job_id))["kind"] for job_id in jobs] == [
        "invalid_result",
        "unknown_task",
    ]
    assert await rigged.dead_letters() == []


async def test_max_attempts_of_the_request_takes_precedence(rig: RigMaker) -> None:
    flaky = Flaky(ConnectionError("away"))
    rigged = rig(registry=registry_of(flaky.handle, "chat", max_attempts=2))
    rigged.start()
    [one] = await rigged.post(max_attempts=1)
    [two] = await rigged.post()
    [four] = await rigged.post(max_attempts=4)
    assert await rigged.ended([one, two, four]) == {b"error"}
    assert [flaky.tries[job_id] for job_id in (one, two, four)] == [1, 2, 4]


async def test_a_job_that_succeeds_in_the_end(rig: RigMaker) -> None:
    flaky = Flaky(TransientError("busy"), failures=2)
    rigged = rig(flaky.handle)
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"done"
    assert (await rigged.job(job_id))[b"result"] == b"3"
    assert (await rigged.job(job_id))[b"error"] == b""
    assert await rigged.types(job_id) == [
        b"queued", b"running", b"retry", b"running", b"retry", b"running", b"done",
    ]  # fmt: skip
    assert await rigged.dead_letters() == []
    await rigged.all_acked()
    assert not await rigged.client.exists(rigged.keys.lease(job_id))


# -- events and dead letters ------------------------------------------------------------------


async def test_the_retry_event_and_the_delay(rig: RigMaker) -> None:
    flaky = Flaky(Overloaded("come back later", retry_after_s=1800))
    rigged = rig(flaky.handle)
    rigged.start()
    [job_id] = await rigged.post(ttl_s=60)

    async def waits() -> bool:
        return (await rigged.types(job_id))[-1] == b"retry"

    await eventually(waits)
    assert (await rigged.job(job_id))[b"status"] == b"queued"
    kind, step, data = (await rigged.parsed_events(job_id))[-1]
    assert (kind, step) == ("retry", "worker.retry")
    assert isinstance(data.pop("ms"), int)
    assert data == {
        "attempt": 1,
        "delay_ms": 1_800_000,
        "max_attempts": 5,
        "kind": "overloaded",
        "message": "come back later",
    }
    assert await rigged.pending() == 1
    await eventually(lambda: rigged.slots.free == 4)  # it occupies no slot while it waits
    # A worker that claims the message meanwhile has to wait.
    [entry] = await rigged.client.xpending_range(rigged.keys.queue, "workers", "-", "+", 1)
    reply = await rigged.begin(job_id, entry["message_id"].decode(), "other")
    assert reply.answer is Answer.WAIT
    assert 1_790_000 < int(reply.value) <= 1_800_000
    for key in (rigged.keys.job, rigged.keys.events, rigged.keys.lease):
        assert await rigged.client.ttl(key(job_id)) > 1800  # longer than the delay


async def test_the_dead_letter_has_the_first_and_the_last_error(rig: RigMaker) -> None:
    errors = [ConnectionError("one"), TimeoutError("two"), ValueError("three")]

    async def handler(context: Any, payload: Any) -> None:
        raise errors[context.attempt - 1]

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post(payload=b'{"a":1}')
    assert await rigged.settled(job_id) == b"error"
    [letter] = await rigged.dead_letters()
    assert letter[b"job_id"].decode() == job_id
    assert letter[b"attempts"] == b"3"
    assert json.loads(letter[b"first_error"]) == {
        "kind": "ConnectionError", "message": "one", "attempt": 1,
    }  # fmt: skip
    assert json.loads(letter[b"last_error"]) == await rigged.error(job_id)
    assert json.loads(letter[b"last_error"])["kind"] == "ValueError"
    assert json.loads(letter[b"fields"]) == {
        "job_id": job_id, "task": "chat", "payload": '{"a":1}',
    }  # fmt: skip
    await rigged.all_acked()


async def test_events_of_a_failed_attempt_are_kept(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.emit("progress", {"attempt": context.attempt})
        if context.attempt == 1:
            raise TransientError("once")

    rigged = rig(handler)
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"done"
    assert await rigged.types(job_id) == [
        b"queued", b"running", b"progress", b"retry", b"running", b"progress", b"done",
    ]  # fmt: skip


async def test_a_failed_dead_letter_does_not_repeat_the_final_event(
    rig: RigMaker,
) -> None:
    rigged = rig(Flaky(ValueError("bad")).handle)
    await rigged.client.set(rigged.keys.dead_letters, "not a stream")
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"error"
    await eventually(lambda: rigged.slots.busy == 0)
    [message] = await rigged.client.xrange(rigged.keys.queue)
    reply = await rigged.begin(job_id, message[0].decode(), "other")
    assert reply.answer is Answer.TERMINAL
    assert (await rigged.types(job_id)).count(b"error") == 1
    assert await rigged.pending() == 0


# -- delays -----------------------------------------------------------------------------------


def test_the_wait_grows_within_its_jitter_up_to_its_limit() -> None:
    backoff = Backoff(1.0, factor=2.0, max_s=10.0, jitter=0.5)
    for failures, longest in [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (1000, 10)]:
        delays = [backoff.delay_s(failures) for _ in range(200)]
        assert longest / 2 <= min(delays)
        assert max(delays) <= longest
        assert max(delays) - min(delays) > longest / 10  # they differ


@pytest.mark.parametrize("factor", [1.0, 100.0, 1e6])
def test_large_factors_do_not_overflow(factor: float) -> None:
    backoff = Backoff(1.0, factor=factor, max_s=5.0, jitter=0)
    for failures in (1, 2, 63, 64, 65, 10**6):
        assert 1.0 <= backoff.delay_s(failures) <= 5.0


def test_without_jitter_it_is_exact() -> None:
    backoff = Backoff(0.5, factor=3.0, max_s=60.0, jitter=0)
    assert [backoff.delay_s(n) for n in (1, 2, 3)] == [0.5, 1.5, 4.5]
    assert Backoff(0).delay_s(3) == 0


def test_options_survive_a_round_trip() -> None:
    options = JobOptions(2.5, Backoff(1, 2, 3, 0.25))
    assert JobOptions.from_json(options.to_json()) == options
    assert JobOptions().to_json() == b""


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
    exact = {
        name: Backoff(n, jitter=0) for n, name in enumerate(("request", "handler", "worker"), 1)
    }
    worker = WorkerDefaults(backoff=exact["worker"])
    error = ConnectionError()
    assert decide(error, worker=worker).delay_ms == 3000
    terms = HandlerOptions(backoff=exact["handler"])
    assert decide(error, worker=worker, handler=terms).delay_ms == 2000
    asks = RequestOptions(options=JobOptions(backoff=exact["request"]))
    assert decide(error, worker=worker, handler=terms, asks=asks).delay_ms == 1000


async def test_released_attempts_do_not_count() -> None:
    last = decide(ConnectionError(), 3, asks=RequestOptions(3, released=0))
    assert not isinstance(last, Retry)
    retry = decide(
        ConnectionError(),
        3,
        asks=RequestOptions(3, released=1, options=JobOptions(backoff=Backoff(1, jitter=0))),
    )
    assert isinstance(retry, Retry)
    assert retry.delay_ms == 2000  # it is the second failure


@pytest.mark.parametrize(
    ("retry_after_s", "delay_ms"), [(0, 0), (0.25, 250), (7, 7000), (-3, 0), (90, 90_000)]
)
async def test_a_transient_error_may_set_the_delay(retry_after_s: float, delay_ms: int) -> None:
    worker = WorkerDefaults(backoff=Backoff(1, max_s=2))
    error = TransientError("busy", retry_after_s=retry_after_s)
    assert decide(error, worker=worker).delay_ms == delay_ms


@pytest.mark.parametrize("retry_after_s", [math.inf, math.nan, 1e30, "5", "soon", [1]])
async def test_an_invalid_delay_does_not_leave_the_job_pending(
    fake_rig: RigMaker, retry_after_s: Any
) -> None:
    """The value may come from a Retry-After header."""

    async def handler(context: Any, payload: Any) -> None:
        raise TransientError("busy", retry_after_s=retry_after_s)

    rigged = fake_rig(handler)
    outcome, job_id = await rigged.execute()
    assert outcome in (Outcome.RETRY, Outcome.ERROR)
    assert (await rigged.types(job_id))[-1] in (b"retry", b"error")


# -- several workers --------------------------------------------------------------------------


async def test_another_worker_takes_over_after_the_delay(rig: RigMaker) -> None:
    """The first worker dies while the job waits: its message is claimed, the delay respected."""
    flaky = Flaky(TransientError("busy", retry_after_s=0.6), failures=1)
    first = rig(flaky.handle)
    first.executor._defer = lambda *message: None  # as if it had died
    first.start()
    [job_id] = await first.post()
    await eventually(lambda: flaky.tries[job_id] == 1)

    async def waits() -> bool:
        return (await first.types(job_id))[-1] == b"retry"

    await eventually(waits)
    message_id = (await first.pending_entry())["message_id"].decode()
    await first.claim_for("c1", message_id, 60_000)
    heir = rig(flaky.handle, identity=first.worker._replace(consumer="heir"))
    heir.start(recover=True)
    assert await heir.settled(job_id) == b"done"
    events = await heir.events(job_id)
    [failed_at, begun_at] = [int(event[b"ts"]) for event in events[2:4]]
    assert 600 <= begun_at - failed_at < SOON_MS
    assert await heir.types(job_id) == [
        b"queued", b"running", b"retry", b"running", b"done",
    ]  # fmt: skip
    assert json.loads(events[3][b"data"]) == {"attempt": 2}
    await heir.all_acked()


async def test_a_message_claimed_too_early_is_deferred(rig: RigMaker) -> None:
    rigged = rig()
    lease = await rigged.running()
    answer = await rigged.store.retry(lease, rigged.worker, 300, b'{"kind":"x"}', b"{}")
    assert answer is Answer.OK
    rigged.start()
    rigged.consumer.deferred.add(lease.message_id)
    assert await rigged.settled(lease.job_id) == b"done"
    [failed_at, begun_at] = [int(e[b"ts"]) for e in (await rigged.events(lease.job_id))[2:4]]
    assert 300 <= begun_at - failed_at < SOON_MS


async def test_many_instantly_failing_jobs_do_not_starve_others(
    real_rig: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="worker")
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

    eager = WorkerIdentity("workers", "c1", 30_000, 600, max_attempts=20)
    rigged = real_rig(handler, identity=eager, max_inflight=4)
    await rigged.group()
    bad = await rigged.post(100, payload=b'{"fails":1}')
    good = await rigged.post(20)
    rigged.start()
    assert await rigged.ended([*good, *bad]) == {b"done", b"error"}
    assert failures == 2000
    assert failures_when_good_ended < 1000  # they did not wait for the end of the others
    assert most <= 4
    for job_id in bad[::20]:
        assert await rigged.types(job_id) == types_of(20)
    await rigged.all_acked()
    assert len(await rigged.dead_letters()) == 100
    assert len(rigged.consumer.deferred) == 0


async def test_a_steady_stream_of_new_jobs_does_not_starve_the_retries(
    real_rig: RigMaker,
) -> None:
    flaky = Flaky(TransientError("again", retry_after_s=0.01), failures=3)
    posting = True

    async def handler(context: Any, payload: Any) -> Any:
        if payload.get("flaky"):
            return await flaky.handle(context, payload)
        return None

    rigged = real_rig(handler, max_inflight=1)
    await rigged.group()
    rigged.start()

    async def pour() -> None:
        while posting:
            await rigged.post(5)

    pouring = asyncio.create_task(pour())
    try:
        jobs = await rigged.post(3, payload=b'{"flaky":1}')
        assert await rigged.ended(jobs) == {b"done"}
    finally:
        posting = False
        await pouring


async def test_a_repeated_retry_of_a_lost_reply(rig: RigMaker) -> None:
    rigged = rig()
    lease = await rigged.running()
    for _ in range(2):
        answer = await rigged.store.retry(lease, rigged.worker, 0, b'{"kind":"x"}', b"{}")
        assert answer is Answer.OK
    assert (await rigged.types(lease.job_id)).count(b"retry") == 1


async def test_attempts_of_a_dead_worker_count(rig: RigMaker) -> None:
    """Crashes and errors are counted together."""
    rigged = rig(Flaky(ConnectionError("away")).handle, terms=WorkerDefaults(3, backoff=QUICK))
    lease = await rigged.running()
    lease = await rigged.take_over(lease)  # the first worker's lease expired
    claim = Claim(lease.job_id, lease.message_id, "t3")
    await rigged.expire(lease)
    [reply] = await rigged.store.begin([claim], rigged.worker._replace(max_attempts=2))
    assert not isinstance(reply, Exception)
    assert reply.answer is Answer.EXHAUSTED
    assert json.loads((await rigged.job(lease.job_id))[b"error"])["kind"] == "attempts_exhausted"
