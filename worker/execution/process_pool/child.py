"""The main function of a pool process: runs one call after the other until its parent is gone.

A call is eight bytes of length and `[function, arguments]` in the form of `plain`. The replies are
`[kind, value]` in the same form: notes while the function runs, then its result or its error.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import sys
import threading
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final

from sluice.worker.execution.process_pool import plain

LENGTH: Final = struct.Struct(">Q")
#: Kinds of replies. All except a note end the call.
NOTE, RETURNED, RAISED, MEMORY, BROKEN = "note", "returned", "raised", "memory", "broken"
KINDS: Final = (NOTE, RETURNED, RAISED, MEMORY, BROKEN)
#: The attribute of a `TransientError` that is not one of its arguments.
RETRY_AFTER_S: Final = "retry_after_s"
#: Limits of a process for hostile input: bytes of a file that it writes, and threads and processes
#: in addition to those that the user has. (Decoders start one thread per core.)
MOST_FILE_BYTES: Final = 64 * 1024 * 1024
EXTRA_TASKS: Final = 256
#: The worker has more urgent work: renewing leases, writing events.
NICENESS: Final = 5
#: If memory runs out, the kernel should kill this process and not the worker.
OOM_SCORE: Final = "500"
_MOST_CHARS: Final = 500


class _ResponseWriter:
    """Writes replies to the parent. Threads of the running function may write notes, too."""

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
        reply = plain.dumps([NOTE, value])
        with self._lock:
            if self._in_call:  # otherwise the note would be attributed to the next call
                self._write(reply)

    def end(self, reply: bytes) -> None:
        with self._lock:
            self._in_call = False
            self._write(reply)

    def _write(self, reply: bytes) -> None:
        assert self._pipe is not None
        self._pipe.write(LENGTH.pack(len(reply)) + reply)
        self._pipe.flush()


_RESPONSES: Final = _ResponseWriter()


def note(value: Any) -> None:
    """Send a value to the caller's `on_note` while a function runs in the pool. It is made of None,
    bool, int, float, str, bytes, list, tuple, set and dict.

    Does nothing outside of a pool process.
    """
    _RESPONSES.note(value)


def main(memory_bytes: str, most_tasks: str = "") -> None:
    """Run calls until standard input ends.

    With `most_tasks`, threads and processes of the user, it can write no large files either.
    """
    # Libraries that start a thread per core would use up the memory for their stacks alone.
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
    from sluice.worker.execution.process_pool.confine import limit_resources

    limits = {}
    if most_tasks:
        limits = {"RLIMIT_FSIZE": MOST_FILE_BYTES, "RLIMIT_NPROC": int(most_tasks)}
    limit_resources(int(memory_bytes), **limits)
    with contextlib.suppress(OSError):  # a sandbox may forbid it, as redis-worker@.service does
        os.nice(NICENESS)
    with contextlib.suppress(OSError):  # exists only on Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    requests = sys.stdin.buffer
    # Output that a function prints must not get into the replies.
    _RESPONSES.open(os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(requests, calls), daemon=True).start()
    while True:
        call = calls.get()
        _RESPONSES.begin()
        _RESPONSES.end(_run_call(call))


def _read_calls(requests: IO[bytes], calls: queue.SimpleQueue[bytes]) -> None:
    """Read calls. Exit at once, even during a call, when the parent is gone."""
    while True:
        head = requests.read(LENGTH.size)
        if len(head) < LENGTH.size:
            os._exit(0)
        length = LENGTH.unpack(head)[0]
        call = requests.read(length)
        if len(call) < length:
            os._exit(0)
        calls.put(call)


def _run_call(call: bytes) -> bytes:
    try:
        name, arguments = plain.loads(call, plain.find)
        function = plain.find(name)
    except Exception as error:
        return _broken_response(
            f"the function or its arguments are not available in the process: {_error_text(error)}"
        )
    try:
        result = function(*arguments)
    except MemoryError:
        return plain.dumps([MEMORY, None])
    except Exception as error:
        return _raised_response(error)
    try:
        return plain.dumps([RETURNED, result])
    except MemoryError:
        return plain.dumps([MEMORY, None])
    except Exception as error:
        return _broken_response(f"the result of {name} cannot be returned: {_error_text(error)}")


def _raised_response(error: Exception) -> bytes:
    """The class of an exception and the arguments that create it again."""
    try:
        reduced = error.__reduce__()
        arguments = reduced[1] if isinstance(reduced, tuple) else ()
        values = [each.value if isinstance(each, Enum) else each for each in arguments]
        wait_s = getattr(error, RETRY_AFTER_S, None)
        name = plain.name_of(type(error))
        return plain.dumps([RAISED, [name, values, wait_s, _error_text(error)]])
    except Exception:
        return _broken_response(_error_text(error))


def _broken_response(message: str) -> bytes:
    return plain.dumps([BROKEN, message])


def _error_text(error: Any) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MOST_CHARS]
    except Exception:  # its __str__ raises
        return type(error).__name__
