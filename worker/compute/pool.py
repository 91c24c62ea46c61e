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

from worker.compute.errors import ComputeCrashed, ComputeError, ComputeTimeout, OutOfMemory
from worker.threads import call_in_thread

if TYPE_CHECKING:
    from worker.compute.process import Process

T = TypeVar("T")

#: Address space of one process. (A box with 8 GB shares them with a model.)
MEMORY_BYTES: Final = 1024 * 1024 * 1024
#: A process is let go after so much time without work.
IDLE_S: Final = 30.0


class Pool:
    """As many processes as there are cores, at most."""

    def __init__(
        self,
        most: int | None = None,
        idle_s: float = IDLE_S,
        memory_bytes: int = MEMORY_BYTES,
        most_calls: int | None = None,
    ) -> None:
        self._places = asyncio.Semaphore(most or cores())
        self._idle_s = idle_s
        self._memory_bytes = memory_bytes
        #: Calls after which a process is replaced: what libraries leave lying about goes with it.
        self._most_calls = most_calls
        self._free: dict[Process, asyncio.TimerHandle] = {}
        self._all: set[Process] = set()

    @property
    def pids(self) -> list[int]:
        """The processes that there are."""
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
        `worker.compute.child.note`, in that order, and never after this has returned. A call that
        takes longer than `timeout_s`, not counted the time it waits for a process, is killed.
        """
        from worker.compute.child import MEMORY, RAISED, RETURNED  # a pool without work needs none

        async with self._places:
            process = self._take()
            call = _Call(process, on_note, timeout_s)
            try:
                how, value = await call_in_thread(process.ask, function, arguments, call.note)
            except BaseException as error:  # nobody wants it any more, or it is broken
                self._let_go(process)
                if call.took_too_long and isinstance(error, ComputeCrashed):
                    raise ComputeTimeout(timeout_s or 0.0) from None
                raise
            finally:
                call.close()
            if how == MEMORY or call.took_too_long or process.calls == self._most_calls:
                self._let_go(process)  # what is left of it is in pieces, or not worth keeping
            else:
                self._give_back(process)
        if how == RETURNED:
            return value  # type: ignore[no-any-return]
        if how == RAISED:
            raise value
        if how == MEMORY:
            raise OutOfMemory(self._memory_bytes)
        raise ComputeError(str(value))

    async def close(self) -> None:
        """End all processes."""
        for timer in self._free.values():
            timer.cancel()
        self._free.clear()
        ending, self._all = list(self._all), set()
        for process in ending:
            process.end()
        await asyncio.gather(*(call_in_thread(process.ended.wait) for process in ending))

    def _take(self) -> Process:
        """A free process; the one that worked last, so that the others can go."""
        while self._free:
            process, timer = self._free.popitem()
            timer.cancel()
            if process.is_alive:
                return process
            self._let_go(process)  # somebody ended it meanwhile
        from worker.compute.process import Process

        process = Process(self._memory_bytes)
        self._all.add(process)
        return process

    def _give_back(self, process: Process) -> None:
        if process in self._all:  # else the pool was closed
            loop = asyncio.get_running_loop()
            self._free[process] = loop.call_later(self._idle_s, self._retire, process)

    def _retire(self, process: Process) -> None:
        self._free.pop(process, None)
        self._let_go(process)

    def _let_go(self, process: Process) -> None:
        self._all.discard(process)
        process.end()


class _Call:
    """What goes on beside a call: its notes, and its time."""

    def __init__(
        self, process: Process, on_note: Callable[[Any], None] | None, timeout_s: float | None
    ) -> None:
        self._process = process
        self._on_note = on_note
        self._loop = asyncio.get_running_loop()
        self.took_too_long = False
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._end)

    def note(self, value: Any) -> None:
        """From the thread that asks. The loop gets the answer the same way, so after the notes."""
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._hear, value)

    def close(self) -> None:
        """Nothing more is heard, nothing more is killed."""
        self._on_note = None
        if self._timer is not None:
            self._timer.cancel()

    def _hear(self, value: Any) -> None:
        if self._on_note is not None:
            self._on_note(value)

    def _end(self) -> None:
        self.took_too_long = True
        self._process.end()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
