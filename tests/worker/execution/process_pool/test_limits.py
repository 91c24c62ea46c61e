"""Notes, timeouts and failures of calls in the process pool."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.worker.execution.process_pool.test_pool import (
    busy_pid,
    dies,
    double,
    environment,
    fails,
    gone,
    own_pid,
    takes_all_memory,
    works_for_ever,
)
from worker.execution.process_pool.child import note
from worker.execution.process_pool.errors import ComputeCrashed, ComputeTimeout, OutOfMemory
from worker.execution.process_pool.pool import ProcessPool
from worker.features.workflows.errors import StepError

MakePool = Callable[..., ProcessPool]


@pytest.fixture
async def make_pool() -> AsyncIterator[MakePool]:
    made: list[ProcessPool] = []

    def make(size: int, **options: Any) -> ProcessPool:
        made.append(ProcessPool(size, **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def pool(make_pool: MakePool) -> ProcessPool:
    return make_pool(2)


@contextlib.contextmanager
def later(seconds: float) -> Iterator[None]:
    """Advance the clock of this loop's timers; the child processes do not notice."""
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda now=loop.time: now() + seconds)
        yield


def sends_notes(*values: Any) -> int:
    for value in values:
        note(value)
    return len(values)


def sends_notes_and_fails() -> None:
    note("begun")
    raise StepError("no_photos", "there are none")


def sends_notes_and_dies() -> None:
    note("begun")
    segfaults()


def sends_a_late_note() -> None:
    """Its thread sends a note after the call has ended."""
    threading.Timer(0.2, note, args=("late",)).start()


def waits_for_the_late_note() -> int:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    note("in time")
    return threading.active_count()


def segfaults() -> None:
    ctypes.string_at(0)


def waits_for(path: str) -> str:
    note("waiting")
    while not Path(path).exists():
        pass
    return path


def sends_notes_for_ever() -> None:
    while True:
        note("and so on")


def oom_score() -> str:
    return Path("/proc/self/oom_score_adj").read_text().strip()


async def test_notes_arrive_during_the_call_and_in_order(pool: ProcessPool, tmp_path: Path) -> None:
    heard: list[Any] = []
    working = asyncio.create_task(
        pool.run(waits_for, str(tmp_path / "go"), on_note=heard.append, timeout_s=60)
    )
    await eventually(lambda: heard == ["waiting"], 30)
    assert not working.done()
    (tmp_path / "go").touch()
    assert await working == str(tmp_path / "go")
    notes: list[tuple[Any, int]] = []
    add = notes.append
    call = pool.run(
        sends_notes, *range(500), on_note=lambda value: add((value, threading.get_ident()))
    )
    assert await call == 500
    # All of them have arrived when it returns, in the thread of the loop.
    assert notes == [(value, threading.get_ident()) for value in range(500)]
    assert await pool.run(sends_notes, 1, 2) == 2  # without a callback


async def test_notes_before_a_failure_are_delivered(pool: ProcessPool) -> None:
    heard: list[Any] = []
    with pytest.raises(StepError):
        await pool.run(sends_notes_and_fails, on_note=heard.append)
    with pytest.raises(ComputeCrashed):
        await pool.run(sends_notes_and_dies, on_note=heard.append)
    assert heard == ["begun", "begun"]


async def test_a_note_of_an_earlier_call_is_not_attributed_to_the_next(pool: ProcessPool) -> None:
    heard: list[Any] = []
    await pool.run(sends_a_late_note, on_note=heard.append)
    await pool.run(waits_for_the_late_note, on_note=heard.append)
    # It was sent either before the second call, and dropped, or during it.
    assert heard in (["in time"], ["late", "in time"])
    assert await pool.run(double, 2) == 4


def test_a_note_outside_of_a_pool_does_nothing() -> None:
    assert sends_notes(1, 2) == 2


async def test_no_notes_are_delivered_after_a_cancellation(pool: ProcessPool) -> None:
    heard: list[Any] = []
    working = asyncio.create_task(pool.run(sends_notes_for_ever, on_note=heard.append))
    await eventually(lambda: heard, 30)
    [pid] = pool.pids
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    notes = len(heard)
    await eventually(lambda: gone(pid))  # and the pipe was read to its end
    assert len(heard) == notes


async def test_a_segfault_affects_only_its_own_call(pool: ProcessPool, tmp_path: Path) -> None:
    heard: list[Any] = []
    neighbour = asyncio.create_task(
        pool.run(waits_for, str(tmp_path / "go"), on_note=heard.append, timeout_s=60)
    )
    await eventually(lambda: heard, 30)
    for _ in range(3):
        with pytest.raises(ComputeCrashed):
            await pool.run(segfaults)
    (tmp_path / "go").touch()
    assert await neighbour
    assert await pool.run(double, 2) == 4


async def test_a_call_that_hangs_is_killed_after_its_timeout(
    pool: ProcessPool, tmp_path: Path
) -> None:
    await pool.run(double, 1)  # starts a process
    working = asyncio.create_task(pool.run(works_for_ever, str(tmp_path / "pid"), timeout_s=60.5))
    pid = await busy_pid(tmp_path / "pid")
    with later(61), pytest.raises(ComputeTimeout, match=r"longer than 60\.5 s") as caught:
        await asyncio.wait_for(working, 30)
    assert caught.value.permanent
    await eventually(lambda: gone(pid))
    assert await pool.run(double, 5, timeout_s=60) == 10


async def test_a_timeout_does_not_outlive_its_call(make_pool: MakePool) -> None:
    pool = make_pool(1, idle_s=3600)
    first = await pool.run(own_pid, timeout_s=60)
    with later(61):
        await asyncio.sleep(0.01)  # due timers run
    assert await pool.run(own_pid) == first


async def test_waiting_for_a_process_is_not_counted(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(1)
    await pool.run(double, 1)
    heard: list[Any] = []
    first = asyncio.create_task(pool.run(waits_for, str(tmp_path / "go"), on_note=heard.append))
    await eventually(lambda: heard, 30)
    second = asyncio.create_task(pool.run(double, 3, timeout_s=60))
    await asyncio.sleep(0.01)  # by now it waits for a process
    with later(61):
        await asyncio.sleep(0.01)  # due timers run
    (tmp_path / "go").touch()
    assert await second == 6
    assert await first


async def test_a_process_is_replaced_after_its_maximum_of_calls(make_pool: MakePool) -> None:
    pool = make_pool(1, most_calls=3)
    pids = [await pool.run(own_pid) for _ in range(5)]
    with pytest.raises(StepError):
        await pool.run(fails, "step")  # counts too
    pids.append(await pool.run(own_pid))
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 2, 1]
    await eventually(lambda: gone(pids[0]) and gone(pids[3]))
    assert pool.pids == [pids[5]]


async def test_lack_of_memory_affects_only_its_own_call(
    make_pool: MakePool, tmp_path: Path
) -> None:
    pool = make_pool(2, memory_bytes=256 * 1024 * 1024)
    heard: list[Any] = []
    neighbour = asyncio.create_task(
        pool.run(waits_for, str(tmp_path / "go"), on_note=heard.append, timeout_s=60)
    )
    await eventually(lambda: heard, 30)
    with pytest.raises(OutOfMemory, match="256 MB") as caught:
        await pool.run(takes_all_memory)
    assert caught.value.kind == "out_of_memory"
    with pytest.raises(ComputeCrashed):
        await pool.run(dies)
    (tmp_path / "go").touch()
    assert await neighbour


async def test_a_process_returns_memory_and_is_killed_first(pool: ProcessPool) -> None:
    surroundings = await pool.run(environment)
    assert surroundings["MALLOC_ARENA_MAX"] == "2"
    assert int(surroundings["MALLOC_TRIM_THRESHOLD_"]) > 0
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(await pool.run(oom_score)) >= max(own, 500)


def test_errors_can_be_pickled() -> None:
    late = pickle.loads(pickle.dumps(ComputeTimeout(1.5)))
    assert (late.timeout_s, str(late)) == (1.5, "the call takes longer than 1.5 s")
    greedy = pickle.loads(pickle.dumps(OutOfMemory(1 << 28)))
    assert str(greedy).startswith("the call needs more than 256 MB")
