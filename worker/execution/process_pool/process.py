"""One process of the pool. It is called from one thread at a time and can be killed from any."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import IO, Any, Final

from sluice.worker.execution.process_pool import child as compute_child
from sluice.worker.execution.process_pool import confine, plain
from sluice.worker.execution.process_pool.child import (
    EXTRA_TASKS,
    KINDS,
    LENGTH,
    NOTE,
    RAISED,
    RETURNED,
)
from sluice.worker.execution.process_pool.errors import ComputeCrashed, ComputeError
from sluice.worker.execution.process_pool.raised import rebuilt_error

#: Bytes of one reply; a larger one would use too much memory of the worker.
MOST_REPLY_BYTES: Final = 256 * 1024 * 1024
#: malloc returns larger blocks to the kernel at once, because several processes may work on large
#: inputs in turn. Smaller blocks are kept: getting them again from the kernel takes time.
_KEPT_BYTES: Final = 32 * 1024 * 1024
ENVIRONMENT: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(_KEPT_BYTES),
}
_PIECE: Final = 1 << 20


class PoolProcess:
    """A child process that is started by its first call."""

    def __init__(
        self,
        memory_bytes: int,
        most_reply_bytes: int = MOST_REPLY_BYTES,
        input_is_hostile: bool = False,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._input_is_hostile = input_is_hostile
        self._most_reply_bytes = most_reply_bytes
        self._process: subprocess.Popen[bytes] | None = None
        #: Guards the two flags. The calling thread cleans up after its call: no other thread may
        #: close a pipe that it reads.
        self._state = threading.Lock()
        self._in_call = False
        self._killed = False
        self.ended = threading.Event()
        #: How many calls it has received.
        self.calls = 0

    @property
    def pid(self) -> int:
        """0 before it was started."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process, also during a call; returns at once."""
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
        """Run a call; returns the kind of the reply and its value. Raises ComputeCrashed if there
        is no reply, and ComputeError for an invalid one: then the process must be killed."""
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
        """True if the process was killed during the call."""
        with self._state:
            self._in_call = False
            return self._killed

    def _call(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        on_note: Callable[[Any], None] | None,
    ) -> tuple[str, Any]:
        call = _encode_call(function, arguments)
        if self._process is None:
            limits = [str(self._memory_bytes)]
            if self._input_is_hostile:
                limits.append(str(confine.own_tasks() + EXTRA_TASKS))
            process = confine.start_process(
                compute_child.__name__, *limits, environment=ENVIRONMENT
            )
            with self._state:
                self._process = process
                if self._killed:  # `kill` was called before the process was started
                    process.kill()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _write_call(self._process.stdin, call)
            while True:
                reply = _read_message(self._process.stdout.fileno(), self._most_reply_bytes)
                kind, value = _decode_reply(reply, function)
                if kind != NOTE:
                    return kind, value
                if on_note is not None:
                    on_note(value)
        except OSError:  # broken pipe
            raise ComputeCrashed from None

    def _clean_up(self) -> None:
        """Wait until the killed process has ended, and close its pipes."""
        if self._process is not None:
            with self._process:
                self._process.kill()
        self.ended.set()


def _encode_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return plain.dumps([plain.name_of(function), list(arguments)])
    except plain.NotPlain as error:
        raise ComputeError(f"cannot call {function!r} in a process: {error}") from None


def _decode_reply(reply: bytes, function: Callable[..., Any]) -> tuple[str, Any]:
    """Kind and value. Raises ComputeError for anything unexpected: the process may be under the
    control of its input. A result must have the type of the function's return annotation."""
    annotation, classes = _result_type(function)

    def class_of(name: str) -> type:
        return classes[name] if name in classes else plain.no_class(name)

    try:
        kind, value = plain.loads(reply, class_of)
        if kind not in KINDS:
            raise plain.NotPlain(f"{str(kind)[:200]!r} is not a kind of reply")
        if kind == RETURNED and not plain.fits(value, annotation):
            raise plain.NotPlain(f"the result is not of the type {annotation}")
        return kind, rebuilt_error(value) if kind == RAISED else value
    except (plain.NotPlain, TypeError, ValueError) as error:
        raise ComputeError(f"invalid reply to the call of {function!r}: {error}") from None


@lru_cache(maxsize=256)
def _result_type(function: Callable[..., Any]) -> tuple[Any, dict[str, type]]:
    annotation = plain.return_annotation(function)
    return annotation, plain.classes_in(annotation)


def _write_call(pipe: IO[bytes], call: bytes) -> None:
    for piece in (LENGTH.pack(len(call)), call):
        unsent = memoryview(piece)
        while unsent:
            unsent = unsent[pipe.write(unsent) :]


def _read_message(descriptor: int, most_bytes: int) -> bytes:
    """Read the next reply."""
    length = LENGTH.unpack(_read_exactly(descriptor, LENGTH.size))[0]
    if length > most_bytes:
        raise ComputeError(f"the result has {length} bytes; at most {most_bytes}")
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
