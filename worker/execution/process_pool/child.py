"""What a process of the pool does: one call after the other, until nobody is there to ask.

A call comes as eight bytes of length and a pickle of `(function, arguments)`. Pickles of
`(how, value)` go back in the same form: notes while it works, and then what came of it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import sys
import threading
from pathlib import Path
from typing import IO, Any, Final

LENGTH: Final = struct.Struct(">Q")
#: What is told: first of the two things in a pickle. All but a note end the call.
NOTE, RETURNED, RAISED, MEMORY, BROKEN = "note", "returned", "raised", "memory", "broken"
#: A worker has more urgent things to do: leases to renew, others' events to write.
NICENESS: Final = 5
#: Where memory runs out, the kernel is to take this process and not the worker.
OOM_SCORE: Final = "500"
_MOST_CHARS: Final = 500


class _ResponseWriter:
    """The way back to whoever asked. A function's own threads may tell something, too."""

    def __init__(self) -> None:
        self._pipe: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._in_call = False

    def open(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def begin(self) -> None:
        with self._lock:
            self._in_call = True

    def note(self, value: Any) -> None:
        told = pickle.dumps((NOTE, value))
        with self._lock:
            if self._in_call:  # else the next call would be taken to have said it
                self._write(told)

    def end(self, answer: bytes) -> None:
        with self._lock:
            self._in_call = False
            self._write(answer)

    def _write(self, told: bytes) -> None:
        assert self._pipe is not None
        self._pipe.write(LENGTH.pack(len(told)) + told)
        self._pipe.flush()


_RESPONSES: Final = _ResponseWriter()


def note(value: Any) -> None:
    """Called by a function of the pool while it works: tells something to whoever wants it.

    It must be picklable. Outside of a pool's process nobody hears it.
    """
    _RESPONSES.note(value)


def main(memory_bytes: str) -> None:
    """Answer calls until standard input ends."""
    # Libraries that keep a thread for each core would take the memory for their stacks alone.
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
    from worker.execution.process_pool.confine import limit_resources

    limit_resources(int(memory_bytes))
    with contextlib.suppress(OSError):  # a sandbox may forbid it: redis-worker@.service does
        os.nice(NICENESS)
    with contextlib.suppress(OSError):  # not everywhere is there such a thing
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    asked = sys.stdin.buffer
    # Whatever a function prints must not get into the answers.
    _RESPONSES.open(os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(asked, calls), daemon=True).start()
    while True:
        call = calls.get()
        _RESPONSES.begin()
        _RESPONSES.end(_run_call(call))


def _read_calls(asked: IO[bytes], calls: queue.SimpleQueue[bytes]) -> None:
    """Take calls in. Whoever is gone wants no answer, so its end is ours, in the middle of work."""
    while True:
        head = asked.read(LENGTH.size)
        if len(head) < LENGTH.size:
            os._exit(0)
        length = LENGTH.unpack(head)[0]
        call = asked.read(length)
        if len(call) < length:
            os._exit(0)
        calls.put(call)


def _run_call(call: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(call)
    except Exception as error:
        return _broken_response(
            f"the function cannot be found, or its arguments: {_error_text(error)}"
        )
    try:
        return pickle.dumps((RETURNED, function(*arguments)))
    except MemoryError:
        return pickle.dumps((MEMORY, None))
    except Exception as error:
        return _raised_response(error)


def _raised_response(error: Exception) -> bytes:
    try:
        raised = pickle.dumps((RAISED, error))
        pickle.loads(raised)  # many an exception can be taken apart, and not be put together
    except Exception:
        return _broken_response(_error_text(error))
    return raised


def _broken_response(words: str) -> bytes:
    return pickle.dumps((BROKEN, words))


def _error_text(error: Any) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MOST_CHARS]
    except Exception:  # an error of its own making
        return type(error).__name__
