"""One process of the pool: asked from a thread, ended from anywhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any, Final

from worker.execution.process_pool import child as compute_child
from worker.execution.process_pool import confine
from worker.execution.process_pool.child import LENGTH, NOTE
from worker.execution.process_pool.errors import ComputeCrashed, ComputeError

#: Bytes of one answer; more would weigh on the worker itself.
MOST_ANSWER_BYTES: Final = 256 * 1024 * 1024
#: What was big once is given back: many a process of the pool works on big things in turn. What is
#: not so big is kept, for the kernel takes time to bring it again.
_KEPT_BYTES: Final = 32 * 1024 * 1024
ENVIRONMENT: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(_KEPT_BYTES),
}
_PIECE: Final = 1 << 20


class PoolProcess:
    """Started by the first thing that it is asked."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        #: Whoever asks is the one to clean up: nobody may close a pipe that another reads.
        self._state = threading.Lock()
        self._in_call = False
        self._killed = False
        self.ended = threading.Event()
        #: How many things it was asked.
        self.calls = 0

    @property
    def pid(self) -> int:
        """Its number; 0 before it was started."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill it, whatever it does; returns at once."""
        with self._state:
            self._killed = True
            if self._process is not None:
                self._process.kill()
            if self._in_call or self.ended.is_set():
                return
        threading.Thread(target=self._clean_up, name="reaper", daemon=True).start()

    def call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        on_note: Callable[[Any], None] | None,
    ) -> tuple[str, Any]:
        """How a call ended, and with what; raises ComputeCrashed where there is no answer."""
        with self._state:
            if self._killed:
                raise ComputeCrashed
            self._in_call = True
            self.calls += 1
        try:
            return self._call(function, arguments, on_note)
        finally:
            if self._finish_call():
                self._clean_up()

    def _finish_call(self) -> bool:
        """Whether it was to end meanwhile."""
        with self._state:
            self._in_call = False
            return self._killed

    def _call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        on_note: Callable[[Any], None] | None,
    ) -> tuple[str, Any]:
        call = _pickle_call(function, arguments)
        if self._process is None:
            process = confine.start_process(
                compute_child.__name__, str(self._memory_bytes), environment=ENVIRONMENT
            )
            with self._state:
                self._process = process
                if self._killed:  # from before there was what to kill
                    process.kill()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _write_call(self._process.stdin, call)
            while True:
                how, value = pickle.loads(_read_message(self._process.stdout.fileno()))
                if how != NOTE:
                    return how, value
                if on_note is not None:
                    on_note(value)
        except OSError:  # a pipe that nobody reads any more
            raise ComputeCrashed from None

    def _clean_up(self) -> None:
        """Wait for its end, which was seen to, and close what led to it."""
        if self._process is not None:
            with self._process:
                self._process.kill()
        self.ended.set()


def _pickle_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ComputeError(
            f"{function!r} or its arguments cannot be handed over: {error}"
        ) from None


def _write_call(pipe: IO[bytes], call: bytes) -> None:
    for piece in (LENGTH.pack(len(call)), call):
        unsent = memoryview(piece)
        while unsent:
            unsent = unsent[pipe.write(unsent) :]


def _read_message(descriptor: int) -> bytes:
    """The next thing that the process tells."""
    length = LENGTH.unpack(_read_exactly(descriptor, LENGTH.size))[0]
    if length > MOST_ANSWER_BYTES:
        raise ComputeError(f"what came of it has {length} bytes, {MOST_ANSWER_BYTES} at most")
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length:
        piece = os.read(descriptor, min(length, _PIECE))
        if not piece:
            raise ComputeCrashed
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
