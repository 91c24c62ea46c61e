"""The process pool: functions run in other processes, with limits, and can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.worker.errors import TransientError
from sluice.worker.execution.process_pool.errors import (
    ComputeCrashed,
    ComputeError,
    ComputeTimeout,
    OutOfMemory,
)
from sluice.worker.execution.process_pool.pool import ProcessPool, available_cores
from sluice.worker.features.workflows.errors import StepError
from tests.support.processes.worker import ROOT
from tests.support.waiting import eventually
from tests.support.worker.computing import (
    dies,
    double,
    fails,
    long_answer,
    own_pid,
    segfaults,
    sends_a_late_note,
    sends_notes,
    sends_notes_for_ever,
    surroundings,
    takes_all_memory,
    waits_for,
    waits_for_the_late_note,
    works_for_ever,
)

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


def gone(pid: int) -> bool:
    """True if the process does not exist, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def busy_pid(path: Path) -> int:
    """The pid of the process that never ends, once it runs."""
    return int(await eventually(lambda: path.exists() and path.read_text(), 30))


async def waiting_call(pool: ProcessPool, path: Path) -> asyncio.Task[str]:
    heard: list[Any] = []
    call = asyncio.create_task(pool.run(waits_for, str(path), on_note=heard.append, timeout_s=60))
    await eventually(lambda: heard == ["waiting"], 30)
    assert not call.done()
    return call


async def test_functions_run_in_another_process(pool: ProcessPool) -> None:
    assert await pool.run(double, 21) == 42
    assert await pool.run(own_pid) != os.getpid()
    niceness, environment, oom_score = await pool.run(surroundings)
    assert niceness >= 5
    assert "HOME" not in environment
    # It returns memory, and is killed before the worker.
    assert environment["MALLOC_ARENA_MAX"] == "2"
    assert int(environment["MALLOC_TRIM_THRESHOLD_"]) > 0
    assert oom_score >= max(int(Path("/proc/self/oom_score_adj").read_text()), 500)
    assert len(await pool.run(long_answer, 5_000_000)) == 5_000_000
    assert await pool.run(len, b"x" * 5_000_000) == 5_000_000


async def test_processes_are_reused(pool: ProcessPool) -> None:
    assert len({await pool.run(own_pid) for _ in range(5)}) == 1
    found = await asyncio.gather(*(pool.run(double, number) for number in range(10)))
    assert found == [2 * number for number in range(10)]
    assert len(pool.pids) <= 2
    assert available_cores() >= 1


async def test_exceptions_are_raised_in_the_caller(pool: ProcessPool) -> None:
    """Notes that were sent before are delivered."""
    heard: list[Any] = []
    with pytest.raises(StepError, match="there are none") as caught:
        await pool.run(fails, "step", on_note=heard.append)
    assert (caught.value.code, caught.value.kind) == ("no_photos", "no_photos")
    with pytest.raises(ComputeCrashed):
        await pool.run(dies, on_note=heard.append)
    assert heard == ["begun", "begun"]
    for error, function, argument, message in (
        (TransientError, fails, "transient", "later"),
        (ComputeError, fails, "unhandy", "Unusual: one and two"),
        (ComputeError, lambda value: value, 1, "is not a class or function of a module"),
        (ComputeError, double, (each for each in ()), "generator is not None, bool"),
    ):
        with pytest.raises(error, match=message):
            await pool.run(function, argument)
    assert await pool.run(double, 1) == 2


async def test_an_idle_process_that_was_killed_is_replaced(pool: ProcessPool) -> None:
    pid = await pool.run(own_pid)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(os.listdir(f"/proc/{pid}/task")) == 1 and is_zombie(pid))
    assert await pool.run(own_pid) != pid
    await eventually(lambda: gone(pid))


@pytest.mark.parametrize("how", ["canceled", "killed", "too long"])
async def test_a_call_that_never_ends_can_be_stopped(
    pool: ProcessPool, tmp_path: Path, how: str
) -> None:
    """It does not block the loop meanwhile, and its process is replaced."""
    call = asyncio.create_task(pool.run(works_for_ever, str(tmp_path / "pid"), timeout_s=60.5))
    pid = await busy_pid(tmp_path / "pid")
    if how == "canceled":
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    elif how == "killed":
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ComputeCrashed):
            await call
    else:
        with later(61), pytest.raises(ComputeTimeout, match=r"longer than 60\.5 s") as caught:
            await asyncio.wait_for(call, 30)
        assert caught.value.permanent
    await eventually(lambda: gone(pid))
    assert await pool.run(double, 5, timeout_s=60) == 10


async def test_a_call_that_is_canceled_before_it_began(pool: ProcessPool) -> None:
    for _ in range(5):
        working = asyncio.create_task(pool.run(double, 1))
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    assert await pool.run(double, 5) == 10
    await eventually(lambda: len(pool.pids) <= 1)


async def test_waiting_calls_run_when_others_are_canceled(
    make_pool: MakePool, tmp_path: Path
) -> None:
    pool = make_pool(1)
    first = asyncio.create_task(pool.run(works_for_ever, str(tmp_path / "pid")))
    await busy_pid(tmp_path / "pid")
    second = asyncio.create_task(pool.run(double, 1))
    third = asyncio.create_task(pool.run(double, 2))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    assert await asyncio.wait_for(third, 20) == 4


async def test_idle_processes_end(make_pool: MakePool) -> None:
    pool = make_pool(1, idle_s=0.05)
    pid = await pool.run(own_pid)
    await eventually(lambda: gone(pid))
    assert pool.pids == []
    assert await pool.run(own_pid) != pid


async def test_close_kills_running_calls(tmp_path: Path) -> None:
    pool = ProcessPool(2)
    idle = await pool.run(own_pid)
    working: asyncio.Task[Any] = asyncio.create_task(
        pool.run(works_for_ever, str(tmp_path / "pid"))
    )
    busy = await busy_pid(tmp_path / "pid")
    await pool.close()
    assert gone(idle)
    assert gone(busy)
    with pytest.raises(ComputeCrashed):
        await working


async def test_processes_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    """Also during a call, because the parent that would read the reply is gone."""
    script = tmp_path / "doomed.py"
    script.write_text(
        "import asyncio\n"
        "from tests.support.worker.computing import works_for_ever\n"
        "from sluice.worker.execution.process_pool.pool import ProcessPool\n"
        f"asyncio.run(ProcessPool(1).run(works_for_ever, {str(tmp_path / 'pid')!r}))\n"
    )
    doomed = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        pid = await busy_pid(tmp_path / "pid")
    finally:
        doomed.kill()
        doomed.wait(20)
    await eventually(lambda: gone(pid))


# -- notes ------------------------------------------------------------------------------------


async def test_notes_arrive_during_the_call_and_in_order(pool: ProcessPool, tmp_path: Path) -> None:
    working = await waiting_call(pool, tmp_path / "go")
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
    assert sends_notes(1, 2) == 2  # outside of a pool


async def test_a_note_of_an_earlier_call_is_not_attributed_to_the_next(pool: ProcessPool) -> None:
    heard: list[Any] = []
    await pool.run(sends_a_late_note, on_note=heard.append)
    await pool.run(waits_for_the_late_note, on_note=heard.append)
    # It was sent either before the second call, and dropped, or during it.
    assert heard in (["in time"], ["late", "in time"])
    assert await pool.run(double, 2) == 4


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


# -- limits -----------------------------------------------------------------------------------


async def test_a_crash_or_lack_of_memory_affects_only_its_own_call(
    make_pool: MakePool, tmp_path: Path
) -> None:
    pool = make_pool(2, memory_bytes=256 * 1024 * 1024)
    neighbour = await waiting_call(pool, tmp_path / "go")
    for _ in range(2):
        with pytest.raises(ComputeCrashed):
            await pool.run(segfaults)
    with pytest.raises(OutOfMemory, match="256 MB") as caught:
        await pool.run(takes_all_memory)
    assert caught.value.kind == "out_of_memory"
    with pytest.raises(ComputeCrashed):
        await pool.run(dies)
    (tmp_path / "go").touch()
    assert await neighbour
    assert await pool.run(double, 2) == 4


async def test_a_timeout_applies_only_while_its_call_runs(
    make_pool: MakePool, tmp_path: Path
) -> None:
    """Not to the next call, and not while the call waits for a process."""
    pool = make_pool(1, idle_s=3600)
    pid = await pool.run(own_pid, timeout_s=60)
    with later(61):
        await asyncio.sleep(0.01)  # due timers run
    assert await pool.run(own_pid) == pid
    heard: list[Any] = []
    first = asyncio.create_task(pool.run(waits_for, str(tmp_path / "go"), on_note=heard.append))
    await eventually(lambda: heard, 30)
    second = asyncio.create_task(pool.run(double, 3, timeout_s=60))
    await asyncio.sleep(0.01)  # by now it waits for a process
    with later(61):
        await asyncio.sleep(0.01)
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
