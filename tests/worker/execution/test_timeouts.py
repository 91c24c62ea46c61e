"""Timeouts: which one applies, and what happens to a handler that does not stop."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from typing import Any

import pytest

from common.jobs.options import Backoff, JobOptions
from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker, job_options, registry_of
from worker.errors import AttemptLost, JobError
from worker.execution.executor import Outcome
from worker.execution.outcome import (
    NO_HANDLER_OPTIONS,
    NO_REQUEST_OPTIONS,
    HandlerOptions,
    Timeout,
    WorkerDefaults,
    choose_timeout,
)

ENDS = {b"done", b"error", b"canceled"}


def limited(timeout_s: float, **rest: Any) -> WorkerDefaults:
    return WorkerDefaults(timeout_s=timeout_s, backoff=Backoff(0.01, max_s=0.02), **rest)


async def forever(context: Any, payload: Any) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def short_hard_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that ignores its cancellation is abandoned almost at once."""
    monkeypatch.setattr("worker.execution.attempt.HARD_KILL_S", 0.03)


async def ends(rigged: Rig, job_id: str) -> list[bytes]:
    return [kind for kind in await rigged.types(job_id) if kind in ENDS]


# -- which timeout ----------------------------------------------------------------------------


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
    rig: RigMaker,
    request_s: float | None,
    handler_s: float | None,
    worker_s: float | None,
    named: str,
) -> None:
    registry = registry_of(forever, "chat", timeout_s=handler_s)
    rigged = rig(registry=registry, terms=WorkerDefaults(timeout_s=worker_s))
    rigged.start()
    [job_id] = await rigged.post(options=b"" if request_s is None else job_options(request_s))
    assert await rigged.settled(job_id) == b"error"
    assert await rigged.error(job_id) == {
        "kind": "timeout",
        "message": f"ran longer than 0.05 s, which is {named}",
        "attempt": 1,
        "budget_s": 0.05,
    }
    await rigged.all_acked()


@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
async def test_long_timeouts_are_polled(
    fake_rig: RigMaker, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.execution.attempt.POLLED_TIMEOUT_S", 0.0)
    monkeypatch.setattr("worker.execution.executor.TIMEOUT_POLL_S", 0.02)
    release = threading.Event()

    def blocking(context: Any, payload: Any) -> None:
        release.wait(30)

    rigged = fake_rig(
        blocking if sync else forever, max_inflight=8, terms=WorkerDefaults(cancel_grace_s=0.01)
    )
    rigged.start()
    try:
        short = await rigged.post(4, options=job_options(0.05))
        [long] = await rigged.post(options=job_options(60))
        assert await rigged.ended(short) == {b"error"}
        for job_id in short:
            error = await rigged.error(job_id)
            assert (error["kind"], error["budget_s"]) == ("timeout", 0.05)
        assert (await rigged.job(long))[b"status"] == b"running"
        # Also after a time without running jobs.
        await rigged.cancel(long)
        assert await rigged.settled(long) == b"canceled"
        [again] = await rigged.post(options=job_options(0.05))
        assert await rigged.settled(again) == b"error"
    finally:
        release.set()


async def test_a_request_may_set_a_longer_timeout_than_the_handler(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> float:
        await asyncio.sleep(0.1)
        return float(context.remaining_s)

    registry = registry_of(handler, "chat", timeout_s=0.02)
    rigged = rig(registry=registry, terms=limited(0.02))
    rigged.start()
    [job_id] = await rigged.post(options=job_options(30))
    assert await rigged.settled(job_id) == b"done"
    assert 20 < json.loads((await rigged.job(job_id))[b"result"]) < 29.95


def test_choose_timeout() -> None:
    worker = WorkerDefaults(timeout_s=3)
    assert choose_timeout(NO_REQUEST_OPTIONS, NO_HANDLER_OPTIONS, worker) == Timeout(
        3, "JOB_TIMEOUT_S"
    )
    assert choose_timeout(NO_REQUEST_OPTIONS, HandlerOptions(2), worker) == Timeout(
        2, "the handler's timeout_s"
    )
    assert choose_timeout(NO_REQUEST_OPTIONS, NO_HANDLER_OPTIONS, WorkerDefaults()).seconds is None


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf])
def test_timeouts_of_handlers_are_bounded(timeout_s: float) -> None:
    """An event loop cannot wait for ever; uvloop would raise only when the job runs."""
    with pytest.raises(ValueError, match="timeout_s"):
        HandlerOptions(timeout_s=timeout_s)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("timeout_s", [None, 30.0], ids=["no limit", "limit"])
async def test_a_handler_sees_its_deadline(
    rig: RigMaker, sync: bool, timeout_s: float | None
) -> None:
    def look(context: Any) -> Any:
        if context.deadline is None:
            return [None, context.remaining_s]
        return [context.deadline - time.monotonic(), context.remaining_s]

    async def coroutine(context: Any, payload: Any) -> Any:
        return look(context)

    rigged = rig(
        (lambda context, payload: look(context)) if sync else coroutine,
        terms=WorkerDefaults(timeout_s=timeout_s),
    )
    outcome, job_id = await rigged.execute()
    assert outcome is Outcome.DONE
    seen = json.loads((await rigged.job(job_id))[b"result"])
    if timeout_s is None:
        assert seen == [None, None]
    else:
        assert all(20 < left <= 30 for left in seen)


async def test_remaining_time_decreases(fake_rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> Any:
        seen = [context.remaining_s]
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(context.remaining_s)
            await context.emit("seen", seen)
            raise

    rigged = fake_rig(handler, terms=limited(0.1))
    outcome, job_id = await rigged.execute()
    assert outcome is Outcome.ERROR
    [first, last] = next(d for kind, _, d in await rigged.parsed_events(job_id) if kind == "seen")
    assert 0.05 < first <= 0.1
    assert last <= 0.01


# -- how the handler reacts -------------------------------------------------------------------


AFTER = {
    "returns": None,
    "raises": RuntimeError("cleaning up failed"),
    "job error": JobError("gave up"),
    "connection": ConnectionError("torn"),
    "exit": SystemExit(1),
    "timeout": TimeoutError("its own"),
}


@pytest.mark.parametrize("name", AFTER)
async def test_however_a_stopped_handler_ends_the_failure_is_a_timeout(
    fake_rig: RigMaker, name: str
) -> None:
    async def handler(context: Any, payload: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if (error := AFTER[name]) is not None:
                raise error from None
            return {"late": True}

    rigged = fake_rig(handler, terms=limited(0.02))
    outcome, job_id = await rigged.execute()
    assert outcome is Outcome.ERROR
    assert (await rigged.error(job_id))["kind"] == "timeout"
    assert await rigged.pending() == 0
    assert len(await rigged.dead_letters()) == 1


async def test_events_before_the_timeout_are_kept(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.emit("partial", {"n": 1})
        try:
            await asyncio.Event().wait()
        finally:
            await context.emit("partial", {"n": 2})

    rigged = rig(handler, terms=limited(0.05))
    _, job_id = await rigged.execute()
    assert await rigged.types(job_id) == [b"queued", b"running", b"partial", b"partial", b"error"]


async def test_a_timeout_is_retried_with_max_attempts(rig: RigMaker) -> None:
    rigged = rig(forever, terms=limited(0.03))
    rigged.start()
    [job_id] = await rigged.post(max_attempts=3)
    assert await rigged.settled(job_id) == b"error"
    story = await rigged.parsed_events(job_id)
    assert [kind for kind, _, _ in story] == [
        "queued", "running", "retry", "running", "retry", "running", "error",
    ]  # fmt: skip
    for number, (_, _, data) in enumerate([entry for entry in story if entry[0] == "retry"], 1):
        assert (data["kind"], data["attempt"], data["max_attempts"]) == ("timeout", number, 3)
        assert data["budget_s"] == 0.03
    assert (await rigged.error(job_id))["attempt"] == 3
    [letter] = await rigged.dead_letters()
    assert (letter[b"reason"], letter[b"attempts"]) == (b"attempts_exhausted", b"3")
    assert json.loads(letter[b"first_error"])["attempt"] == 1
    assert json.loads(letter[b"last_error"])["attempt"] == 3
    await rigged.all_acked()


async def test_a_timeout_is_not_retried_without_max_attempts(rig: RigMaker) -> None:
    rigged = rig(forever, terms=limited(0.03, max_attempts=5))
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"error"
    assert await rigged.types(job_id) == [b"queued", b"running", b"error"]
    assert len(await rigged.dead_letters()) == 1


async def test_the_timeout_does_not_apply_to_the_report(fake_rig: RigMaker) -> None:
    """The handler was in time; a slow Redis does not count."""
    rigged = fake_rig(lambda context, payload: 1, terms=limited(0.05))
    finish, timer = rigged.executor._store.finish, asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        asyncio.get_running_loop().call_later(0.1, timer.set)
        await timer.wait()
        return await finish(*args, **rest)

    rigged.executor._store.finish = slow  # type: ignore[method-assign]
    outcome, job_id = await rigged.execute()
    assert outcome is Outcome.DONE
    assert (await rigged.job(job_id))[b"status"] == b"done"


# -- handlers that do not stop ----------------------------------------------------------------


class IgnoresCancel:
    """An async handler that swallows every cancellation until it is released."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.inside = 0
        self.ended = 0
        self.late: list[BaseException | None] = []

    async def handle(self, context: Any, payload: Any) -> Any:
        if not payload.get("stubborn"):
            return {"fine": True}
        self.inside += 1
        await context.emit("partial", {"n": 1})
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
        try:
            await context.emit("late", {})
            await asyncio.sleep(0)
            await context.emit("later", {})
            self.late.append(None)
        except Exception as error:
            self.late.append(error)
        self.ended += 1
        return {"late": True}


@pytest.mark.usefixtures("short_hard_kill")
async def test_a_handler_that_ignores_its_cancellation_is_abandoned(rig: RigMaker) -> None:
    stubborn = IgnoresCancel()
    rigged = rig(stubborn.handle, max_inflight=1)
    rigged.start()
    try:
        [job_id] = await rigged.post(payload=b'{"stubborn":1}', options=job_options(0.03))
        assert await rigged.settled(job_id) == b"error"
        assert (await rigged.error(job_id))["kind"] == "timeout"
        assert await rigged.types(job_id) == [b"queued", b"running", b"partial", b"error"]
        # Its only slot is free again while it still runs.
        [next_job] = await rigged.post()
        assert await rigged.settled(next_job) == b"done"
        assert (stubborn.inside, stubborn.ended) == (1, 0)
        before = await rigged.snapshot()
    finally:
        stubborn.let_go.set()
    await eventually(lambda: stubborn.ended == 1)
    [error] = stubborn.late
    assert isinstance(error, AttemptLost)
    await eventually(lambda: rigged.slots.busy == 0)
    assert rigged.slots.free == 1
    after = await rigged.snapshot()
    for key in (rigged.keys.job(job_id), rigged.keys.events(job_id)):
        assert after[key.encode()] == before[key.encode()]
    [another] = await rigged.post()
    assert await rigged.settled(another) == b"done"
    await rigged.all_acked()
    assert len(await rigged.dead_letters()) == 1


@pytest.mark.usefixtures("short_hard_kill")
async def test_an_abandoned_handler_may_be_retried_while_it_still_runs(rig: RigMaker) -> None:
    stubborn = IgnoresCancel()
    rigged = rig(stubborn.handle, max_inflight=2)
    rigged.start()
    try:
        [job_id] = await rigged.post(
            payload=b'{"stubborn":1}', options=job_options(0.03, Backoff(0.0)), max_attempts=2
        )
        assert await rigged.settled(job_id) == b"error"
    finally:
        stubborn.let_go.set()
    await eventually(lambda: stubborn.ended == 2)
    assert await rigged.types(job_id) == [
        b"queued", b"running", b"partial", b"retry", b"running", b"partial", b"error",
    ]  # fmt: skip
    assert await ends(rigged, job_id) == [b"error"]
    await rigged.all_acked()
    await eventually(lambda: rigged.slots.free == 2)


@pytest.mark.usefixtures("short_hard_kill")
async def test_many_abandoned_handlers_do_not_stop_the_worker(rig: RigMaker) -> None:
    stubborn = IgnoresCancel()
    rigged = rig(stubborn.handle, max_inflight=2)
    rigged.start()
    try:
        stuck = await rigged.post(6, payload=b'{"stubborn":1}', options=job_options(0.02))
        good = await rigged.post(6)
        assert await rigged.ended([*stuck, *good]) == {b"error", b"done"}
        for job_id in stuck:
            assert await ends(rigged, job_id) == [b"error"]
    finally:
        stubborn.let_go.set()
    await eventually(lambda: stubborn.ended == 6)
    await eventually(lambda: rigged.slots.free == 2)
    await rigged.all_acked()


@pytest.mark.usefixtures("short_hard_kill")
async def test_an_abandoned_handler_cannot_emit_during_its_report(
    fake_rig: RigMaker,
) -> None:
    """Its events would use the numbers of those that FINISH writes."""
    let_go, spoken = asyncio.Event(), asyncio.Event()
    late: list[BaseException | None] = []

    async def handler(context: Any, payload: Any) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                await context.emit("partial", {})
        try:
            await context.emit("late", {})
            late.append(None)
        except AttemptLost as error:
            late.append(error)
        spoken.set()

    rigged = fake_rig(handler, terms=limited(0.02))
    finish, held = rigged.executor._store.finish, asyncio.Event()

    async def slow(*args: Any, **rest: Any) -> Any:
        let_go.set()
        await held.wait()
        return await finish(*args, **rest)

    rigged.executor._store.finish = slow  # type: ignore[method-assign]
    rigged.start()
    [job_id] = await rigged.post()
    await asyncio.wait_for(spoken.wait(), 5)
    held.set()
    assert await rigged.settled(job_id) == b"error"
    assert isinstance(late[0], AttemptLost)
    assert await rigged.types(job_id) == [b"queued", b"running", b"partial", b"error"]


@pytest.mark.usefixtures("short_hard_kill")
async def test_a_handler_that_ignores_the_loss_of_its_job_is_abandoned(
    rig: RigMaker,
) -> None:
    """Another worker owns the job, so there is nothing to end, but the slot is needed."""
    stubborn = IgnoresCancel()
    rigged = rig(stubborn.handle, max_inflight=1)
    rigged.start()
    try:
        [job_id] = await rigged.post(payload=b'{"stubborn":1}')
        await eventually(lambda: stubborn.inside)
        await rigged.client.hset(rigged.keys.lease(job_id), "deadline_ms", "1")
        [entry] = await rigged.client.xpending_range(rigged.keys.queue, "workers", "-", "+", 1)
        reply = await rigged.begin(job_id, entry["message_id"].decode(), "heir")
        assert reply.answer.value == "run"
        before = await rigged.events(job_id)
        rigged.leases.wake()
        [next_job] = await rigged.post()
        assert await rigged.settled(next_job) == b"done"
        assert await rigged.events(job_id) == before
    finally:
        stubborn.let_go.set()
    await eventually(lambda: rigged.slots.busy == 0)
    assert await rigged.events(job_id) == before
    assert rigged.slots.free == 1


async def test_a_sync_handler_that_never_returns(rig: RigMaker) -> None:
    entered, release, late = threading.Event(), threading.Event(), []

    def blocking(context: Any, payload: Any) -> Any:
        if not payload.get("stuck"):
            return 1
        entered.set()
        assert release.wait(30)
        try:
            context.emit("late", {})
            context.emit("later", {})
            late.append(None)
        except Exception as error:
            late.append(error)
        return {"late": True}

    rigged = rig(blocking, max_inflight=1)
    rigged.start()
    try:
        [job_id] = await rigged.post(payload=b'{"stuck":1}', options=job_options(0.05))
        assert await rigged.settled(job_id) == b"error"
        assert entered.is_set()
        assert (await rigged.error(job_id))["kind"] == "timeout"
        [next_job] = await rigged.post()
        assert await rigged.settled(next_job) == b"done"
        before = await rigged.events(job_id)
    finally:
        release.set()
    await eventually(lambda: late)
    assert await rigged.events(job_id) == before
    assert await ends(rigged, job_id) == [b"error"]
    await rigged.all_acked()


ODD_WISHES = [
    b"{",
    b"[]",
    b"7",
    b'{"timeout_s":"x"}',
    b'{"timeout_s":{}}',
    b'{"timeout_s":"nan"}',
    b'{"timeout_s":"inf"}',
    b'{"timeout_s":0}',
    b'{"timeout_s":-1}',
    b'{"timeout_s":1' + b"0" * 400 + b"}",
    b'{"backoff":7}',
    b'{"backoff":{"initial_s":"inf"}}',
    b'{"backoff":{"jitter":"nan"}}',
    b'{"backoff":{"max_s":-1}}',
    b'{"backoff":{"factor":1' + b"0" * 400 + b"}}",
]


@pytest.mark.parametrize("options", ODD_WISHES, ids=lambda options: options[:24].decode())
def test_invalid_options_are_ignored(options: bytes) -> None:
    """No timer can wait for these values."""
    read = JobOptions.from_json(options)
    assert (read.timeout_s, read.backoff) == (None, None)


async def test_corrupt_options_do_not_harm_the_job(rig: RigMaker) -> None:
    async def handler(context: Any, payload: Any) -> Any:
        if payload.get("flaky") and context.attempt == 1:
            raise ConnectionError("once")
        return context.attempt

    rigged = rig(handler, max_inflight=32)
    await rigged.group()
    odd = [
        (await rigged.post(options=options, payload=b'{"flaky":1}'))[0] for options in ODD_WISHES
    ]
    good = await rigged.post(4)
    rigged.start()
    assert await rigged.ended([*odd, *good], 5) == {b"done"}
    for job_id in good:
        assert (await rigged.job(job_id))[b"result"] == b"1"
