"""The process pool: functions run in other processes and can be killed at any time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.worker import ROOT
from tests.support.waiting import eventually
from worker.errors import TransientError
from worker.execution.process_pool.errors import ComputeCrashed, ComputeError
from worker.execution.process_pool.pool import ProcessPool, available_cores
from worker.features.workflows.errors import StepError


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = ProcessPool(2)
    yield made
    await made.close()


def double(number: int) -> int:
    print("into nowhere")  # must not get into the replies
    return 2 * number


def own_pid() -> int:
    return os.getpid()


def niceness() -> int:
    return os.nice(0)


def environment() -> dict[str, str]:
    return dict(os.environ)


def fails(what: str) -> None:
    if what == "step":
        raise StepError("no_photos", "there are none")
    if what == "transient":
        raise TransientError("later")
    raise _NotUnpicklable("one", "two")


class _NotUnpicklable(Exception):
    """Can be pickled but not unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def dies() -> None:
    os._exit(3)


def takes_all_memory() -> int:
    held = []
    while True:
        held.append(bytearray(64 * 1024 * 1024))


def works_for_ever(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        pass


def long_answer(length: int) -> bytes:
    return b"x" * length


def gone(pid: int) -> bool:
    """True if the process does not exist, not even as a zombie."""
    return not Path(f"/proc/{pid}").exists()


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def busy_pid(path: Path) -> int:
    """The pid of the process that never ends, once it runs."""
    return int(await eventually(lambda: path.exists() and path.read_text(), 30))


async def test_functions_run_in_another_process(pool: ProcessPool) -> None:
    assert await pool.run(double, 21) == 42
    assert await pool.run(own_pid) != os.getpid()
    assert await pool.run(niceness) >= 5
    assert "HOME" not in await pool.run(environment)


async def test_processes_are_reused(pool: ProcessPool) -> None:
    assert len({await pool.run(own_pid) for _ in range(5)}) == 1
    found = await asyncio.gather(*(pool.run(double, number) for number in range(10)))
    assert found == [2 * number for number in range(10)]
    assert len(pool.pids) <= 2
    assert available_cores() >= 1


async def test_large_arguments_and_results(pool: ProcessPool) -> None:
    assert len(await pool.run(long_answer, 5_000_000)) == 5_000_000
    assert await pool.run(len, b"x" * 5_000_000) == 5_000_000


async def test_exceptions_are_raised_in_the_caller(pool: ProcessPool) -> None:
    with pytest.raises(StepError, match="there are none") as caught:
        await pool.run(fails, "step")
    assert (caught.value.code, caught.value.kind) == ("no_photos", "no_photos")
    for error, function, argument, message in (
        (TransientError, fails, "transient", "later"),
        (ComputeError, fails, "unhandy", "_NotUnpicklable: one and two"),
        (ComputeError, lambda value: value, 1, "cannot be pickled"),
        (ComputeError, double, (each for each in ()), "cannot be pickled"),
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


async def test_a_canceled_call_is_killed_without_blocking_the_loop(
    pool: ProcessPool, tmp_path: Path
) -> None:
    working = asyncio.create_task(pool.run(works_for_ever, str(tmp_path / "pid")))
    pid = await busy_pid(tmp_path / "pid")
    # The loop is free meanwhile.
    before = time.monotonic()
    await asyncio.sleep(0)
    assert time.monotonic() - before < 1
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await eventually(lambda: gone(pid))
    assert await pool.run(double, 5) == 10


async def test_a_call_that_is_canceled_before_it_began(pool: ProcessPool) -> None:
    for _ in range(5):
        working = asyncio.create_task(pool.run(double, 1))
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    assert await pool.run(double, 5) == 10
    await eventually(lambda: len(pool.pids) <= 1)


async def test_a_process_killed_during_a_call(pool: ProcessPool, tmp_path: Path) -> None:
    working = asyncio.create_task(pool.run(works_for_ever, str(tmp_path / "pid")))
    pid = await busy_pid(tmp_path / "pid")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ComputeCrashed):
        await working
    await eventually(lambda: gone(pid))
    assert await pool.run(double, 5) == 10


async def test_waiting_calls_run_when_others_are_canceled(tmp_path: Path) -> None:
    pool = ProcessPool(1)
    try:
        first = asyncio.create_task(pool.run(works_for_ever, str(tmp_path / "pid")))
        await busy_pid(tmp_path / "pid")
        second = asyncio.create_task(pool.run(double, 1))
        third = asyncio.create_task(pool.run(double, 2))
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        assert await asyncio.wait_for(third, 20) == 4
    finally:
        await pool.close()


async def test_idle_processes_end() -> None:
    pool = ProcessPool(1, idle_s=0.05)
    pid = await pool.run(own_pid)
    await eventually(lambda: gone(pid))
    assert pool.pids == []
    assert await pool.run(own_pid) != pid
    await pool.close()


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
        "from tests.worker.execution.process_pool.test_pool import works_for_ever\n"
        "from worker.execution.process_pool.pool import ProcessPool\n"
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
