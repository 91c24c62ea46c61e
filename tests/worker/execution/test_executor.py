"""The executor: every way a handler can end becomes an outcome, and affects no other job."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from sluice.common.contracts.jobs import EventType
from sluice.worker.errors import AttemptLost, JobError
from sluice.worker.execution.executor import Outcome
from sluice.worker.execution.outcome import MAX_ERROR_CHARS
from tests.support.worker.harness import MakeWorker

TYPES = [b"queued", b"running"]


LOOP: list[Any] = []
LOOP.append(LOOP)
VALID = [None, 0, "", [], "text", [1, {"a": None}], 2**80]
INVALID = [{1, 2}, object(), b"bytes", {"a": "\ud800"}, {(1, 2): 3}, LOOP]


@pytest.mark.fakeredis_only
async def test_a_result_is_any_json_value(make_worker: MakeWorker) -> None:
    worker = make_worker(lambda context, payload: value)
    for value in VALID:
        outcome, job_id = await worker.execute()
        assert (outcome, await worker.result(job_id)) == (Outcome.DONE, value)
    for value in INVALID:
        outcome, job_id = await worker.execute()
        assert outcome is Outcome.ERROR, type(value)
        assert (await worker.error(job_id))["kind"] == "invalid_result"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


class Quota(JobError):
    kind = "quota_exceeded"


FAULTS = {
    "exception": (ValueError("bad"), "ValueError", "bad"),
    "exit": (SystemExit(3), "SystemExit", "3"),
    "job error": (Quota("slow down"), "quota_exceeded", "slow down"),
    "huge": (ValueError("x" * 10**6), "ValueError", "x" * MAX_ERROR_CHARS),
    "surrogate": (ValueError("a\ud800b"), "ValueError", "a?b"),
    "cancel": (asyncio.CancelledError(), "handler_error", "the handler canceled itself"),
    "recursion": (RecursionError("deep"), "RecursionError", "deep"),
    "memory": (MemoryError("full"), "MemoryError", "full"),
    "unprintable": (Unprintable(), "Unprintable", "(its text cannot be shown)"),
    "stop async": (StopAsyncIteration("no more"), "StopAsyncIteration", "no more"),
}


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_raising_handler_ends_its_job_in_error(
    make_worker: MakeWorker, name: str, sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(
        logging.CRITICAL, logger="sluice.worker.execution.executor"
    )  # xdist fails on surrogates
    fault, kind, message = FAULTS[name]

    def plain(context: Any, payload: Any) -> Any:
        raise fault

    async def coroutine(context: Any, payload: Any) -> Any:
        raise fault

    worker = make_worker(plain if sync else coroutine)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.ERROR
    error = await worker.error(job_id)
    assert error == {"kind": kind, "message": message, "attempt": 1}
    assert await worker.pending() == 0


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_stop_iteration_does_not_hang_the_job(make_worker: MakeWorker, sync: bool) -> None:
    """`next()` of an empty iterator: asyncio cannot pass StopIteration from a thread."""

    async def coroutine(context: Any, payload: Any) -> Any:
        return next(iter([]))

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    worker = make_worker((lambda context, payload: next(iter([]))) if sync else coroutine)
    assert (await worker.execute())[0] is Outcome.ERROR


@pytest.mark.fakeredis_only
async def test_a_handler_that_cancels_its_own_task(make_worker: MakeWorker) -> None:
    async def handler(context: Any, payload: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if payload.get("wait"):
            await asyncio.sleep(0)
        return {}

    worker = make_worker(handler)
    for payload in (b'{"wait":1}', b"{}"):
        outcome, job_id = await worker.execute(payload)
        assert outcome in (Outcome.ERROR, Outcome.DONE), payload
        assert await worker.settled(job_id) in (b"error", b"done")
    assert await worker.pending() == 0


@pytest.mark.parametrize("returns", [False, True])
async def test_a_lost_lease_cancels_the_handler_and_writes_nothing(
    make_worker: MakeWorker, returns: bool
) -> None:
    """Whether the handler ends with the cancellation, or returns a value nevertheless."""
    started, canceled = asyncio.Event(), asyncio.Event()

    async def handler(context: Any, payload: Any) -> Any:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.set()
            with pytest.raises(AttemptLost):
                await context.emit("late", {})
            if not returns:
                raise
        return {"late": True}

    worker = make_worker(handler)
    attempt = await worker.attempt()
    running = asyncio.create_task(worker.executor.run(attempt))
    await asyncio.wait_for(started.wait(), 5)
    heir = await worker.take_over(attempt.lease)
    before = await worker.snapshot()
    await asyncio.to_thread(worker.leases.run_once)
    assert await asyncio.wait_for(running, 5) is Outcome.LOST
    assert canceled.is_set()
    assert await worker.snapshot() == before
    assert await worker.pending() == 1
    assert (await worker.finish(heir)).value == "ok"


async def test_a_sync_handler_runs_in_a_thread_and_may_emit(make_worker: MakeWorker) -> None:
    def handler(context: Any, payload: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        context.emit("token", {"n": 1})
        context.emit(EventType.MESSAGE, {"n": 2}, step="my.step")
        assert context.elapsed_ms >= 0
        assert context.deadline is None
        return [context.job_id, context.attempt, context.task]

    worker = make_worker(handler)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    assert json.loads((await worker.job(job_id))[b"result"]) == [job_id, 1, "chat"]
    events = (await worker.events(job_id))[2:]
    assert [(event[b"type"], event[b"step"]) for event in events] == [
        (b"token", b"worker.handler"),
        (b"message", b"my.step"),
        (b"done", b"worker.done"),
    ]
