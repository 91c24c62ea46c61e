"""Functions that tests run in pool processes, in a module that takes little time to import."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sluice.common.contracts.images import Stage
from sluice.worker.execution.process_pool import child
from sluice.worker.execution.process_pool.child import LENGTH, note


def double(number: int) -> int:
    print("into nowhere")  # must not get into the replies
    return 2 * number


def own_pid() -> int:
    return os.getpid()


def surroundings() -> tuple[int, dict[str, str], int]:
    """Niceness, environment, and how soon the kernel kills the process."""
    score = Path("/proc/self/oom_score_adj").read_text()
    return os.nice(0), dict(os.environ), int(score)


def fails(what: str) -> None:
    from sluice.worker.errors import TransientError
    from sluice.worker.features.workflows.errors import StepError

    if what == "step":
        note("begun")
        raise StepError("no_photos", "there are none")
    if what == "transient":
        raise TransientError("later")
    raise Unusual("one", "two")


class Unusual(Exception):
    """Is created in another way than its arguments say."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def dies() -> None:
    note("begun")
    os._exit(3)


def segfaults() -> None:
    ctypes.string_at(0)


def takes_all_memory() -> int:
    held = []
    while True:
        held.append(bytearray(64 * 1024 * 1024))


def works_for_ever(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        pass


def waits_for(path: str) -> str:
    note("waiting")
    while not Path(path).exists():
        pass
    return path


def long_answer(length: int) -> bytes:
    return b"x" * length


def sends_notes(*values: Any) -> int:
    for value in values:
        note(value)
    return len(values)


def sends_notes_for_ever() -> None:
    while True:
        note("and so on")


def sends_a_late_note() -> None:
    """Its thread sends a note after the call has ended."""
    threading.Timer(0.2, note, args=("late",)).start()


def waits_for_the_late_note() -> int:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    note("in time")
    return threading.active_count()


class Shape(NamedTuple):
    name: str
    sides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Drawing:
    stage: Stage
    shapes: list[Shape]
    data: bytes
    scale: float | None = None


def doubled(drawing: Drawing) -> Drawing:
    """The same drawing with each shape twice."""
    return dataclasses.replace(drawing, shapes=[*drawing.shapes, *drawing.shapes])


def undeclared(drawing: Drawing) -> Any:
    """Its annotation does not mention the class of its result."""
    return drawing


def writes(reply: bytes) -> Drawing:
    """Writes its own bytes into the pipe to the worker, like a parser that was broken into."""
    pipe = child._RESPONSES._pipe
    assert pipe is not None
    pipe.write(reply)
    pipe.flush()
    threading.Event().wait()
    raise AssertionError


def writes_and_dies(reply: bytes) -> Drawing:
    """Ends in the middle of a reply."""
    pipe = child._RESPONSES._pipe
    assert pipe is not None
    pipe.write(reply)
    pipe.flush()
    os._exit(3)


def writes_message(message: bytes) -> Drawing:
    """The same, with a correct length."""
    return writes(LENGTH.pack(len(message)) + message)


def reads(path: str) -> str:
    return Path(path).read_text(errors="replace")


def writes_file(path: str, size: int) -> int:
    return Path(path).write_bytes(bytes(size))


def limits() -> tuple[int, int]:
    """Bytes of a file, and processes of the user."""
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    tasks, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return file_bytes, tasks
