"""Checks what strangers wrote (schemas, patterns, programs) in a process that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import threading
import time
from typing import Any

from worker import child
from worker.model import checker_child
from worker.model.checker_child import CPU_S, PYTHON, SCHEMA, VALUE
from worker.services import Service
from worker.threads import call_in_thread

#: Longest time a check may take by the clock; its processor time is bounded far below.
WALL_S = 30.0
#: The process is let go after so much time without work.
IDLE_S = 60.0


class TooHard(Exception):
    """The check did not come to an end within its bounds."""

    def __init__(self) -> None:
        super().__init__(f"it takes more than {CPU_S:g} s to check, or has no end")


class Checker(Service):
    """One process for all checks of a worker, one after the other; started when it is needed."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._retiring: asyncio.TimerHandle | None = None

    async def schema_faults(self, schema: Any) -> list[str]:
        """What keeps `schema` from being a JSON Schema (Draft 2020-12) that leads nowhere else."""
        return await self._check(SCHEMA, schema)

    async def value_faults(self, schema: Any, value: Any) -> list[str]:
        """Where `value` does not fit `schema`."""
        return await self._check(VALUE, schema, value)

    async def python_faults(self, source: str) -> list[str]:
        """Why this Python would not take `source` for a module. It is never run."""
        return await self._check(PYTHON, source)

    async def close(self) -> None:
        """Let the process go."""
        self._stay()
        await call_in_thread(self._retire, WALL_S)

    async def _check(self, *request: Any) -> list[str]:
        self._stay()
        try:
            faults: list[str] = await call_in_thread(self._ask, request)
        finally:
            self._stay()
            self._retiring = asyncio.get_running_loop().call_later(IDLE_S, self._retire, 0.0)
        return faults

    def _stay(self) -> None:
        if self._retiring is not None:
            self._retiring.cancel()
            self._retiring = None

    # -- in a thread -------------------------------------------------------------------------------

    def _ask(self, request: tuple[Any, ...]) -> list[str]:
        line = json.dumps(request).encode() + b"\n"
        with self._turn:
            if self._child is not None and self._child.poll() is not None:
                self._let_go()  # somebody ended it meanwhile
            if self._child is None:
                self._child = child.start(checker_child.__name__)
            answer = _exchange(self._child, line)
            if not answer.endswith(b"\n"):  # it ended, or has to
                self._let_go()
                raise TooHard
        faults: list[str] = json.loads(answer)
        return faults

    def _retire(self, patience_s: float) -> None:
        """Let the process go, unless it is busy for longer than that."""
        if self._turn.acquire(timeout=patience_s):
            try:
                self._let_go()
            finally:
                self._turn.release()

    def _let_go(self) -> None:
        process, self._child = self._child, None
        if process is not None:
            with process:
                process.kill()


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """What the process says to one line; less than a line where it ended or took too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + WALL_S
    answer = b""
    try:
        unsent = memoryview(line)
        while unsent:
            unsent = unsent[process.stdin.write(unsent) :]
    except BrokenPipeError:
        return answer
    ready = select.poll()
    ready.register(process.stdout, select.POLLIN)
    while not answer.endswith(b"\n"):
        left_ms = int((deadline - time.monotonic()) * 1000)
        if left_ms <= 0 or not ready.poll(left_ms):
            break
        piece = os.read(process.stdout.fileno(), 65_536)
        if not piece:
            break
        answer += piece
    return answer
