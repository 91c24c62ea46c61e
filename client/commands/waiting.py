"""Waiting for one job's end, with a word now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from client.terminal.console import Console
from client.terminal.text import duration

if TYPE_CHECKING:
    from client import Job, JobHandle

#: How often the person is told that we are still here.
TELL_S = 2.0


def wait_for(console: Console, handle: JobHandle, timeout_s: float | None) -> Job:
    """The job when it has ended; raises WaitTimeout, and on Ctrl-C says that it goes on."""
    from client.errors import WaitTimeout

    began = time.monotonic()
    try:
        while True:
            left_s = None if timeout_s is None else began + timeout_s - time.monotonic()
            if left_s is not None and left_s <= TELL_S:
                return handle.wait(max(0.0, left_s))
            try:
                return handle.wait(TELL_S)
            except WaitTimeout:
                waited = duration((time.monotonic() - began) * 1000)
                console.progress.show(f"{handle.get().status} for {waited} …")
    except KeyboardInterrupt:
        console.say(f"the job goes on: sluice watch {handle.id}")
        raise
    finally:
        console.progress.clear()
