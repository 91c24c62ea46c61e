"""Checkpoints: steps that one attempt has saved need not be repeated by the next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.common.errors import CorruptKey, StoreUnavailable
from sluice.common.jobs.options import JobOptions
from sluice.common.jobs.store import Fence
from sluice.worker.errors import AttemptLost, TransientError
from sluice.worker.execution.attempt import StopReason
from sluice.worker.execution.checkpoints import (
    MAX_NAME_CHARS,
    MAX_STEP_BYTES,
    MAX_STEPS,
    Checkpoints,
)
from sluice.worker.execution.executor import Outcome
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker


class Memory:
    """A store of steps without Redis."""

    def __init__(self, **known: bytes) -> None:
        self.kept = known
        self.reads = 0

    async def save(self, name: str, value: bytes) -> None:
        self.kept[name] = value

    async def saved(self) -> dict[str, bytes]:
        self.reads += 1
        await asyncio.sleep(0)
        return dict(self.kept)


# -- the steps of one attempt ------------------------------------------------------------------


async def test_redis_is_read_once() -> None:
    memory = Memory(a=b"1")
    steps = Checkpoints(memory)
    first, second = await asyncio.gather(steps.all(), steps.all())
    await steps.save("b", {"x": (1, 2)})
    assert first == second == {"a": 1}
    assert await steps.all() == {"a": 1, "b": {"x": [1, 2]}}
    assert memory.reads == 1


async def test_changing_a_returned_value_does_not_change_the_saved_one() -> None:
    steps = Checkpoints(Memory())
    value = {"list": [1]}
    await steps.save("a", value)
    value["list"].append(2)
    (await steps.all())["a"]["list"].append(3)
    assert await steps.all() == {"a": {"list": [1]}}


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("", 1, "cannot name a step"),
        ("a\nb", 1, "cannot name a step"),
        ("\x00", 1, "cannot name a step"),
        ("x" * (MAX_NAME_CHARS + 1), 1, "cannot name a step"),
        ("\ud800", 1, "cannot name a step"),
        (7, 1, "must be a str"),
        ("a", "x" * MAX_STEP_BYTES, f"{MAX_STEP_BYTES} at most"),
        ("a", object(), "not JSON serializable"),
    ],
    ids=["empty", "newline", "nul", "long", "surrogate", "no-str", "large", "no-json"],
)
async def test_invalid_steps_are_refused_without_a_call(name: Any, value: Any, error: str) -> None:
    memory = Memory()
    with pytest.raises((ValueError, TypeError), match=error):
        await Checkpoints(memory).save(name, value)
    assert (memory.kept, memory.reads) == ({}, 0)


async def test_the_longest_name_and_the_largest_value_are_saved() -> None:
    memory = Memory()
    await Checkpoints(memory).save("é 1: round/2" * 8, "x" * (MAX_STEP_BYTES - 2))
    assert len(memory.kept) == 1


async def test_the_number_of_steps_is_limited() -> None:
    memory = Memory(**{f"s{number}": b"1" for number in range(MAX_STEPS - 1)})
    steps = Checkpoints(memory)
    await steps.save("last", 1)
    with pytest.raises(ValueError, match=f"one more than the {MAX_STEPS}"):
        await steps.save("one more", 1)
    await steps.save("last", 2)
    assert (await steps.all())["last"] == 2


async def test_concurrent_saves_respect_the_limit() -> None:
    memory = Memory()
    steps = Checkpoints(memory)
    saving = [steps.save(f"s{number}", 1) for number in range(MAX_STEPS + 9)]
    results = await asyncio.gather(*saving, return_exceptions=True)
    assert sum(isinstance(result, ValueError) for result in results) == 9
    assert len(memory.kept) == len(await steps.all()) == MAX_STEPS


async def test_after_an_interrupted_save_the_steps_are_read_again() -> None:
    class Interrupted(Memory):
        async def save(self, name: str, value: bytes) -> None:
            await super().save(name, value)
            raise asyncio.CancelledError

    memory = Interrupted()
    steps = Checkpoints(memory)
    assert await steps.all() == {}
    with pytest.raises(asyncio.CancelledError):
        await steps.save("a", 1)
    assert await steps.all() == {"a": 1}
    assert memory.reads == 2


async def test_a_corrupt_step_does_not_count_as_missing() -> None:
    with pytest.raises(CorruptKey, match="'a' is not valid JSON"):
        await Checkpoints(Memory(a=b"{")).all()


# -- handlers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_the_next_attempt_continues_after_the_saved_step(
    make_worker: MakeWorker, sync: bool
) -> None:
    effects: list[str] = []

    async def coroutine(context: Any, payload: Any) -> Any:
        done = await context.saved()
        for step in ("one", "two", "three"):
            if step not in done:
                effects.append(step)
                await context.save(step, {"by": context.attempt})
            if step == "two" and context.attempt == 1:
                raise TransientError("in the middle")
        return await context.saved()

    def plain(context: Any, payload: Any) -> Any:
        assert isinstance(context.fence, Fence)
        for step in {"one", "two", "three"} - set(context.saved()):
            effects.append(step)
            context.save(step, {"by": context.attempt})
        if context.attempt == 1:
            raise TransientError("at the end")
        return context.saved()

    worker = make_worker(plain if sync else coroutine)
    job_id = await worker.run_job()
    assert sorted(effects) == ["one", "three", "two"]
    last = 1 if sync else 2
    assert await worker.result(job_id) == {
        "one": {"by": 1},
        "two": {"by": 1},
        "three": {"by": last},
    }
    assert not await worker.held(job_id)


async def test_events_are_written_before_the_step_that_follows_them(
    make_worker: MakeWorker,
) -> None:
    seen: list[list[bytes]] = []

    async def handler(context: Any, payload: Any) -> None:
        for number in range(3):
            await context.emit("note", {"n": number})
            await context.save(f"s{number}", number)
            types = await worker.types(context.job_id)
            seen.append(types[2:])
            await context.emit("after", {"n": number})

    worker = make_worker(handler)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    note, after = b"note", b"after"
    assert seen[0] == [note]
    assert [types[-1] for types in seen] == [note] * 3
    told = [event[b"data"] for event in await worker.events(job_id)][2:-1]
    assert told == [b'{"n":%d}' % number for number in (0, 0, 1, 1, 2, 2)]
    assert (await worker.types(job_id))[2:-1] == [note, after] * 3


async def test_concurrent_saves_are_all_stored_and_no_event_is_lost(
    make_worker: MakeWorker,
) -> None:
    async def handler(context: Any, payload: Any) -> int:
        async def work(number: int) -> None:
            await context.emit("note", {"n": number})
            await context.save(f"s{number}", number)

        await asyncio.gather(*(work(number) for number in range(40)))
        return len(await context.saved())

    worker = make_worker(handler)
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.DONE
    assert (await worker.job(job_id))[b"result"] == b"40"
    told = sorted(int(event[b"data"][5:-1]) for event in (await worker.events(job_id))[2:-1])
    assert told == list(range(40))


@pytest.mark.parametrize("operation", ["save", "saved"])
async def test_an_attempt_that_was_taken_over_has_no_access(
    make_worker: MakeWorker, operation: str
) -> None:
    saved, taken, trouble = asyncio.Event(), asyncio.Event(), []

    async def handler(context: Any, payload: Any) -> None:
        if operation == "save":  # reading is done once
            await context.save("mine", 1)
        saved.set()
        await taken.wait()
        try:
            await (context.save("late", 2) if operation == "save" else context.saved())
        except AttemptLost as lost:
            trouble.append(lost)
            raise

    worker = make_worker(handler)
    attempt = await worker.attempt()
    running = asyncio.create_task(worker.executor.run(attempt))
    await asyncio.wait_for(saved.wait(), 10)
    heir = await worker.take_over(attempt.lease, "other")
    taken.set()
    assert await asyncio.wait_for(running, 10) is Outcome.LOST
    assert len(trouble) == 1
    assert await worker.store.saved(heir) == ({"mine": b"1"} if operation == "save" else {})


async def test_a_step_is_written_even_if_its_handler_is_stopped(make_worker: MakeWorker) -> None:
    """The attempt times out before Redis has replied: the call is completed, once."""
    entered, let_go = asyncio.Event(), asyncio.Event()

    async def handler(context: Any, payload: Any) -> Any:
        if context.attempt == 2:
            return await context.saved()
        await context.emit("note", {})
        await context.save("slow", 1)
        raise AssertionError("it should have been stopped")

    worker = make_worker(handler)
    store = worker.executor._store
    save = store.save

    async def slow(*args: Any) -> Any:
        entered.set()
        await let_go.wait()
        return await save(*args)

    store.save = slow  # type: ignore[method-assign]
    worker.start()
    options = JobOptions(30.0).to_json()
    [job_id] = await worker.post(options=options, max_attempts=2)
    await asyncio.wait_for(entered.wait(), 10)
    [run] = worker.executor.running
    run.context.set_timeout(0.0)
    run.check_timeout()
    await eventually(lambda: run.handler_ended)
    assert run.stop_reason is StopReason.TIMEOUT
    let_go.set()
    assert await worker.settled(job_id) == b"done"
    assert (await worker.job(job_id))[b"result"] == b'{"slow":1}'
    types = await worker.types(job_id)
    assert types == [b"queued", b"running", b"note", b"retry", b"running", b"done"]


@pytest.mark.fakeredis_only
async def test_if_redis_stays_unavailable_the_job_stays_pending(make_worker: MakeWorker) -> None:
    async def handler(context: Any, payload: Any) -> None:
        await context.emit("note", {})
        await context.save("a", 1)

    async def away(*args: Any) -> Any:
        raise StoreUnavailable("gone")

    worker = make_worker(handler)
    worker.executor._store.save = away  # type: ignore[method-assign]
    outcome, job_id = await worker.execute()
    assert outcome is Outcome.LEFT
    assert await worker.pending() == 1
    assert (await worker.job(job_id))[b"status"] == b"running"


# -- tenant and tools --------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_handler_knows_the_tenant_and_the_tools_of_its_job(
    make_worker: MakeWorker, sync: bool
) -> None:
    def plain(context: Any, payload: Any) -> Any:
        return [context.tenant, None if context.tools is None else sorted(context.tools)]

    async def coroutine(context: Any, payload: Any) -> Any:
        return plain(context, payload)

    worker = make_worker(plain if sync else coroutine)
    for options, seen in (
        (b"", ["", None]),
        (JobOptions(timeout_s=9.0).to_json(), ["", None]),
        (JobOptions(tenant="shop", tools=("b", "a")).to_json(), ["shop", ["a", "b"]]),
        (JobOptions(tools=()).to_json(), ["", []]),
    ):
        assert await worker.result(await worker.run_job(options=options)) == seen
