"""A pool of processes for CPU-bound work, which would block the event loop.

Processes are started on demand, run one call at a time, can be killed during a call, and end after
some time without work. A crash, lack of memory or a call that never ends affects only that call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.execution.process_pool.errors import (
    ComputeCrashed,
    ComputeError,
    ComputeTimeout,
    OutOfMemory,
)

if TYPE_CHECKING:
    from sluice.worker.execution.process_pool.process import PoolProcess

T = TypeVar("T")

#: Address space of one process. (A host with 8 GB shares them with a model.)
MEMORY_BYTES: Final = 1024 * 1024 * 1024
#: Seconds without work after which a process ends.
IDLE_S: Final = 30.0


class ProcessPool:
    """Runs functions in at most `most` processes, by default one per core."""

    def __init__(
        self,
        most: int | None = None,
        idle_s: float = IDLE_S,
        memory_bytes: int = MEMORY_BYTES,
        most_calls: int | None = None,
        most_reply_bytes: int | None = None,
        input_is_hostile: bool = False,
    ) -> None:
        self._semaphore = asyncio.Semaphore(most or available_cores())
        self._idle_s = idle_s
        self._memory_bytes = memory_bytes
        #: Calls after which a process is replaced, to free the memory that libraries leak.
        self._most_calls = most_calls
        self._most_reply_bytes = most_reply_bytes
        #: Whether the functions parse what others have made; see `child.main`.
        self._input_is_hostile = input_is_hostile
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
        """Run `function` in a process; returns its result or raises its exception. If this call is
        canceled, the process is killed.

        The function must be a top-level function of a module. It does not see the worker's
        environment variables. Arguments and result are made of None, bool, int, float, str, bytes,
        list, tuple, set, dict, enums, dataclasses and named tuples. The result must have the type
        of the function's return annotation, which must mention its classes.

        Exceptions of Python, `JobError`, `ReportedError` and their subclasses are raised as they
        are, others as ComputeError.

        `on_note` is called in the event loop with each value that the function passes to
        `sluice.worker.execution.process_pool.child.note`, in order, and never after this call has
        returned. A call that takes longer than `timeout_s` is killed; the time it waits for a
        process does not count.
        """
        from sluice.worker.execution.process_pool.child import (  # not needed before the first call
            MEMORY,
            RAISED,
            RETURNED,
        )

        async with self._semaphore:
            process = self._acquire()
            call = _PoolCall(process, on_note, timeout_s)
            try:
                kind, value = await call_in_thread(process.call, function, arguments, call.note)
            except BaseException as error:  # canceled, or the process is broken
                self._discard(process)
                if call.timed_out and isinstance(error, ComputeCrashed):
                    raise ComputeTimeout(timeout_s or 0.0) from None
                raise
            finally:
                call.close()
            if kind == MEMORY or call.timed_out or process.calls == self._most_calls:
                self._discard(process)
            else:
                self._release(process)
        if kind == RETURNED:
            return value  # type: ignore[no-any-return]
        if kind == RAISED:
            raise value
        if kind == MEMORY:
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
        """A free process, the most recently used one, so that the others can end."""
        while self._free:
            process, timer = self._free.popitem()
            timer.cancel()
            if process.is_alive:
                return process
            self._discard(process)  # it has died meanwhile
        from sluice.worker.execution.process_pool.process import MOST_REPLY_BYTES, PoolProcess

        most_bytes = self._most_reply_bytes or MOST_REPLY_BYTES
        process = PoolProcess(self._memory_bytes, most_bytes, self._input_is_hostile)
        self._all.add(process)
        return process

    def _release(self, process: PoolProcess) -> None:
        if process in self._all:  # otherwise the pool was closed
            loop = asyncio.get_running_loop()
            self._free[process] = loop.call_later(self._idle_s, self._retire, process)

    def _retire(self, process: PoolProcess) -> None:
        self._free.pop(process, None)
        self._discard(process)

    def _discard(self, process: PoolProcess) -> None:
        self._all.discard(process)
        process.kill()


class _PoolCall:
    """The notes and the timeout of one call."""

    def __init__(
        self, process: PoolProcess, on_note: Callable[[Any], None] | None, timeout_s: float | None
    ) -> None:
        self._process = process
        self._on_note = on_note
        self._loop = asyncio.get_running_loop()
        self.timed_out = False
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._kill)

    def note(self, value: Any) -> None:
        """Called in the calling thread. The result reaches the loop the same way, after them."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._deliver, value)

    def close(self) -> None:
        """Deliver no more notes, and disarm the timeout."""
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
