"""Timeouts: which one applies, and what happens to a handler that does not stop."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from typing import Any

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.options import Backoff
from sluice.worker.errors import AttemptLost, JobError
from sluice.worker.execution.executor import Outcome
from sluice.worker.execution.outcome import HandlerOptions, WorkerDefaults
from tests.support.waiting import eventually
from tests.support.worker.handlers import Stubborn, forever
from tests.support.worker.harness import MakeWorker, job_options, registry_of


def limited(timeout_s: float, **rest: Any) -> WorkerDefaults:
    return WorkerDefaults(timeout_s=timeout_s, backoff=Backoff(0.01, max_s=0.02), **rest)


@pytest.fixture
def short_hard_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that ignores its cancellation is abandoned almost at once."""
    monkeypatch.setattr("sluice.worker.execution.attempt.HARD_KILL_S", 0.03)


# -- which timeout ----------------------------------------------------------------------------


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("request_s", "handler_s", "worker_s", "named"),
    [
        (0.05, 60.0, 60.0, "the request's timeout_s"),
        (0.05, None, None, "the request's timeout_s"),
        (None, 0.05, 60.0, "the handler's timeout_s"),
        (None, None, 0.05, "JOB_TIMEOUT_S"),
    ],
)
async def test_the_most_specific_timeout_applies_and_is_named(
    make_worker: MakeWorker,
    request_s: float | None,
    handler_s: float | None,
    worker_s: float | None,
    named: str,
) -> None:
    registry = registry_of(forever, "chat", timeout_s=handler_s)
    worker = make_worker(registry=registry, terms=WorkerDefaults(timeout_s=worker_s))
    job_id = await worker.run_job(
        b"error", options=b"" if request_s is None else job_options(request_s)
    )
    assert await worker.error(job_id) == {
        "kind": "timeout",
        "message": f"ran longer than 0.05 s, which is {named}",
        "attempt": 1,
        "budget_s": 0.05,
    }
    await worker.all_acked()


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
async def test_long_timeouts_are_polled(
    make_worker: MakeWorker, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.execution.attempt.POLLED_TIMEOUT_S", 0.0)
    monkeypatch.setattr("sluice.worker.execution.executor.TIMEOUT_POLL_S", 0.02)
    release = threading.Event()

    def blocking(context: Any, payload: Any) -> None:
        release.wait(30)

    worker = make_worker(
        blocking if sync else forever, max_inflight=8, terms=WorkerDefaults(cancel_grace_s=0.01)
    )
    worker.start()
    try:
        short = await worker.post(4, options=job_options(0.05))
        [long] = await worker.post(options=job_options(60))
        assert await worker.ended(short) == {b"error"}
        for job_id in short:
            error = await worker.error(job_id)
            assert (error["kind"], error["budget_s"]) == ("timeout", 0.05)
        assert (await worker.job(long))[b"status"] == b"running"
        # Also after a time without running jobs.
        await worker.cancel(long)
        assert await worker.settled(long) == b"canceled"
        [again] = await worker.post(options=job_options(0.05))
        assert await worker.settled(again) == b"error"
    finally:
        release.set()


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf])
def test_timeouts_of_handlers_are_bounded(timeout_s: float) -> None:
    """An event loop cannot wait for ever; uvloop would raise only when the job runs."""
    with pytest.raises(ValueError, match="timeout_s"):
        HandlerOptions(timeout_s=timeout_s)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
async def test_a_handler_sees_its_deadline(make_worker: MakeWorker, sync: bool) -> None:
    def plain(context: Any, payload: Any) -> Any:
        if context.deadline is None:
            return [None, context.remaining_s]
        return [context.deadline - time.monotonic(), context.remaining_s]

    async def coroutine(context: Any, payload: Any) -> Any:
        return plain(context, payload)

    worker = make_worker(plain if sync else coroutine, terms=WorkerDefaults(timeout_s=None))
    assert await worker.result(await worker.run_job()) == [None, None]
    limited_job = await worker.run_job(options=job_options(30))
    assert all(20 < left <= 30 for left in await worker.result(limited_job))


# -- how the handler reacts -------------------------------------------------------------------


AFTER = {
    "returns": None,
    "raises": RuntimeError("cleaning up failed"),
    "job error": JobError("gave up"),
    "connection": ConnectionError("torn"),
    "exit": SystemExit(1),
    "timeout": TimeoutError("its own"),
}


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("name", AFTER)
async def test_however_a_stopped_handler_ends_the_failure_is_a_timeout(
    make_worker: MakeWorker, name: str
) -> None:
    """Its events are kept, also those of its cleanup."""

    async def handler(context: Any, payload: Any) -> Any:
        await context.emit("partial", {"n": 1})
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await context.emit("partial", {"n": 2})
            if (error := AFTER[name]) is not None:
                raise error from None
            return {"late": True}

    worker = make_worker(handler, terms=limited(0.02))
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.ERROR
    assert (await worker.error(job_id))["kind"] == "timeout"
    assert await worker.types(job_id) == [b"queued", b"running", b"partial", b"partial", b"error"]
    assert await worker.pending() == 0
    assert len(await worker.dead_letters()) == 1


async def test_a_timeout_is_retried_only_with_max_attempts(make_worker: MakeWorker) -> None:
    worker = make_worker(forever, terms=limited(0.03, max_attempts=5))
    without = await worker.run_job(b"error")
    assert await worker.types(without) == [b"queued", b"running", b"error"]
    job_id = await worker.run_job(b"error", max_attempts=3)
    story = await worker.parsed_events(job_id)
    assert [kind for kind, _, _ in story] == [
        "queued", "running", "retry", "running", "retry", "running", "error",
    ]  # fmt: skip
    for number, (_, _, data) in enumerate([entry for entry in story if entry[0] == "retry"], 1):
        assert (data["kind"], data["attempt"], data["max_attempts"]) == ("timeout", number, 3)
        assert data["budget_s"] == 0.03
    assert (await worker.error(job_id))["attempt"] == 3
    [_, letter] = await worker.dead_letters()
    assert (letter[b"reason"], letter[b"attempts"]) == (b"attempts_exhausted", b"3")
    assert json.loads(letter[b"first_error"])["attempt"] == 1
    assert json.loads(letter[b"last_error"])["attempt"] == 3
    await worker.all_acked()


@pytest.mark.fakeredis_only
async def test_the_timeout_does_not_apply_to_the_report(make_worker: MakeWorker) -> None:
    """The handler was in time; a slow Redis does not count."""

    async def handler(context: Any, payload: Any) -> int:
        return 1

    worker = make_worker(handler, terms=limited(0.05))
    finish, timer = worker.executor._store.finish, asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        asyncio.get_running_loop().call_later(0.1, timer.set)
        await timer.wait()
        return await finish(*args, **rest)

    worker.executor._store.finish = slow  # type: ignore[method-assign]
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    assert (await worker.job(job_id))[b"status"] == b"done"


# -- handlers that do not stop ----------------------------------------------------------------


ABANDONED = {
    # The second attempt uses the only slot while the first handler still runs.
    "timeout": [b"retry", b"running", b"partial", b"error"],
    "cancel": [b"canceling"] * 3 + [b"canceled"],
    # Another worker owns the job, so there is nothing to end, but the slot is needed.
    "loss": [b"running"],
}


@pytest.mark.usefixtures("short_hard_kill")
@pytest.mark.parametrize("reason", ABANDONED)
async def test_a_handler_that_ignores_its_cancellation_is_abandoned(
    make_worker: MakeWorker, reason: str
) -> None:
    stubborn = Stubborn()
    terms = WorkerDefaults(cancel_grace_s=0.02, backoff=Backoff(0.0))
    worker = make_worker(stubborn, max_inflight=1, terms=terms)
    worker.start()
    try:
        options = job_options(0.03) if reason == "timeout" else b""
        [job_id] = await worker.post(options=options, max_attempts=2)
        await worker.last_event(job_id, b"partial")
        if reason == "cancel":
            await worker.cancel(job_id)
        elif reason == "loss":
            await worker.client.hset(worker.keys.lease(job_id), "deadline_ms", "1")
            message_id = (await worker.pending_entry())["message_id"].decode()
            assert (await worker.begin(job_id, message_id, "heir")).answer is Answer.RUN
            worker.leases.wake()
        await worker.run_job(payload=b'{"fine":1}')
        await worker.last_event(job_id, ABANDONED[reason][-1])
        before = await worker.job(job_id), await worker.events(job_id)
        assert stubborn.ended == 0
    finally:
        stubborn.released.set()
    await eventually(lambda: stubborn.ended == len(stubborn.begun))
    assert all(isinstance(error, AttemptLost) for error in stubborn.late)
    await eventually(lambda: worker.slots.busy == 0)
    assert worker.slots.free == 1
    assert (await worker.job(job_id), await worker.events(job_id)) == before
    assert (await worker.types(job_id))[3:] == ABANDONED[reason]
    await worker.run_job(payload=b'{"fine":1}')
    if reason == "timeout":
        assert (await worker.error(job_id))["kind"] == "timeout"
    if reason != "loss":
        assert (await worker.job(job_id))[b"result"] == b""
        await worker.all_acked()
    assert len(await worker.dead_letters()) == (reason == "timeout")


@pytest.mark.fakeredis_only
@pytest.mark.usefixtures("short_hard_kill")
async def test_an_abandoned_handler_cannot_emit_during_its_report(make_worker: MakeWorker) -> None:
    """Its events would use the numbers of those that FINISH writes."""
    stubborn = Stubborn()
    worker = make_worker(stubborn, terms=limited(0.02))
    finish = worker.executor._store.finish

    async def slow(*args: Any, **rest: Any) -> Any:
        stubborn.released.set()
        await eventually(lambda: stubborn.ended)
        return await finish(*args, **rest)

    worker.executor._store.finish = slow  # type: ignore[method-assign]
    job_id = await worker.run_job(b"error")
    assert isinstance(stubborn.late[0], AttemptLost)
    assert await worker.types(job_id) == [b"queued", b"running", b"partial", b"error"]


async def test_a_sync_handler_that_never_returns(make_worker: MakeWorker) -> None:
    release, late = threading.Event(), []

    def blocking(context: Any, payload: Any) -> Any:
        if payload.get("fine"):
            return 1
        assert release.wait(30)
        try:
            context.emit("late", {})
            context.emit("later", {})
            late.append(None)
        except Exception as error:
            late.append(error)
        return {"late": True}

    worker = make_worker(blocking, max_inflight=1)
    try:
        job_id = await worker.run_job(b"error", options=job_options(0.05))
        assert (await worker.error(job_id))["kind"] == "timeout"
        await worker.run_job(payload=b'{"fine":1}')
        before = await worker.events(job_id)
    finally:
        release.set()
    await eventually(lambda: late)
    assert await worker.events(job_id) == before
    assert await worker.ends(job_id) == [b"error"]
    await worker.all_acked()


@pytest.mark.parametrize("options", [b"{", b"7", b'{"timeout_s":"nan"}', b'{"backoff":7}'])
async def test_corrupt_options_do_not_harm_the_job(make_worker: MakeWorker, options: bytes) -> None:
    async def handler(context: Any, payload: Any) -> Any:
        if context.attempt == 1:
            raise ConnectionError("once")
        return context.attempt

    worker = make_worker(handler)
    assert await worker.result(await worker.run_job(options=options)) == 2
