"""Processes for work that takes the processor: an event loop must not wait for it.

They are started when there is work, do one call at a time, can be killed in the middle of it, and
are let go when there has been nothing to do for a while. What befalls one of them (a crash, a lack
of memory, a call that never ends) costs its own call and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from worker.execution.concurrency import call_in_thread
from worker.execution.process_pool.errors import (
    ComputeCrashed,
    ComputeError,
    ComputeTimeout,
    OutOfMemory,
)

if TYPE_CHECKING:
    from worker.execution.process_pool.process import PoolProcess

T = TypeVar("T")

#: Address space of one process. (A box with 8 GB shares them with a model.)
MEMORY_BYTES: Final = 1024 * 1024 * 1024
#: A process is let go after so much time without work.
IDLE_S: Final = 30.0


class ProcessPool:
    """As many processes as there are cores, at most."""

    def __init__(
        self,
        most: int | None = None,
        idle_s: float = IDLE_S,
        memory_bytes: int = MEMORY_BYTES,
        most_calls: int | None = None,
    ) -> None:
        self._semaphore = asyncio.Semaphore(most or available_cores())
        self._idle_s = idle_s
        self._memory_bytes = memory_bytes
        #: Calls after which a process is replaced: what libraries leave lying about goes with it.
        self._most_calls = most_calls
        self._free: dict[PoolProcess, asyncio.TimerHandle] = {}
        self._all: set[PoolProcess] = set()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._all if process.pid]

    async def run(
        self,
        function: Callable[..., T],
        *arguments: Any,
        on_note: Callable[[Any], None] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """What `function` returns, or raises, in a process of its own. Canceled, it is killed.

        The function must be one that a module has by its name, and all that goes in and comes out
        must be picklable. It has none of the worker's environment variables.

        `on_note` is called in the event loop with whatever the function gives to
        `worker.execution.process_pool.child.note`, in that order, and never after this has
        returned. A call that
        takes longer than `timeout_s`, not counted the time it waits for a process, is killed.
        """
        from worker.execution.process_pool.child import (  # a pool without work needs none
            MEMORY,
            RAISED,
            RETURNED,
        )

        async with self._semaphore:
            process = self._acquire()
            call = _PoolCall(process, on_note, timeout_s)
            try:
                how, value = await call_in_thread(process.call, function, arguments, call.note)
            except BaseException as error:  # nobody wants it any more, or it is broken
                self._discard(process)
                if call.timed_out and isinstance(error, ComputeCrashed):
                    raise ComputeTimeout(timeout_s or 0.0) from None
                raise
            finally:
                call.close()
            if how == MEMORY or call.timed_out or process.calls == self._most_calls:
                self._discard(process)  # what is left of it is in pieces, or not worth keeping
            else:
                self._release(process)
        if how == RETURNED:
            return value  # type: ignore[no-any-return]
        if how == RAISED:
            raise value
        if how == MEMORY:
            raise OutOfMemory(self._memory_bytes)
        raise ComputeError(str(value))

    async def close(self) -> None:
        for timer in self._free.values():
            timer.cancel()
        self._free.clear()
        ending, self._all = list(self._all), set()
        for process in ending:
            process.kill()
        await asyncio.gather(*(call_in_thread(process.ended.wait) for process in ending))

    def _acquire(self) -> PoolProcess:
        """A free process; the one that worked last, so that the others can go."""
        while self._free:
            process, timer = self._free.popitem()
            timer.cancel()
            if process.is_alive:
                return process
            self._discard(process)  # somebody ended it meanwhile
        from worker.execution.process_pool.process import PoolProcess

        process = PoolProcess(self._memory_bytes)
        self._all.add(process)
        return process

    def _release(self, process: PoolProcess) -> None:
        if process in self._all:  # else the pool was closed
            loop = asyncio.get_running_loop()
            self._free[process] = loop.call_later(self._idle_s, self._retire, process)

    def _retire(self, process: PoolProcess) -> None:
        self._free.pop(process, None)
        self._discard(process)

    def _discard(self, process: PoolProcess) -> None:
        self._all.discard(process)
        process.kill()


class _PoolCall:
    """What goes on beside a call: its notes, and its time."""

    def __init__(
        self, process: PoolProcess, on_note: Callable[[Any], None] | None, timeout_s: float | None
    ) -> None:
        self._process = process
        self._on_note = on_note
        self._loop = asyncio.get_running_loop()
        self.timed_out = False
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._kill)

    def note(self, value: Any) -> None:
        """From the thread that asks. The loop gets the answer the same way, so after the notes."""
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._deliver, value)

    def close(self) -> None:
        """Nothing more is heard, nothing more is killed."""
        self._on_note = None
        if self._timer is not None:
            self._timer.cancel()

    def _deliver(self, value: Any) -> None:
        if self._on_note is not None:
            self._on_note(value)

    def _kill(self) -> None:
        self.timed_out = True
        self._process.kill()


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
