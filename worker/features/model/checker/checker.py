"""Checks untrusted schemas, patterns and programs in a child process that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import threading
import time
from typing import Any

from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.execution.process_pool import confine
from sluice.worker.features.model.checker import child as checker_child
from sluice.worker.features.model.checker.child import CPU_S, PYTHON, SCHEMA, VALUE
from sluice.worker.registry import Service

#: Wall-clock limit of one check; its CPU time is bounded far below.
WALL_S = 30.0
#: The process is stopped after this many seconds without work.
IDLE_S = 60.0


class CheckLimitExceeded(Exception):
    """The check exceeded its limits."""

    def __init__(self) -> None:
        super().__init__(f"the check took more than {CPU_S:g} s, or does not terminate")


class Checker(Service):
    """Runs all checks of a worker in one child process, one at a time; started on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    async def schema_faults(self, schema: Any) -> list[str]:
        """Problems of `schema` as a self-contained JSON Schema (Draft 2020-12)."""
        return await self._check(SCHEMA, schema)

    async def value_faults(self, schema: Any, value: Any) -> list[str]:
        return await self._check(VALUE, schema, value)

    async def python_faults(self, source: str) -> list[str]:
        """Syntax errors of `source` as a Python module. It is never run."""
        return await self._check(PYTHON, source)

    async def close(self) -> None:
        self._cancel_idle_timer()
        await call_in_thread(self._stop_when_idle, WALL_S)

    async def _check(self, *request: Any) -> list[str]:
        self._cancel_idle_timer()
        try:
            faults: list[str] = await call_in_thread(self._ask, request)
        finally:
            self._cancel_idle_timer()
            self._idle_timer = asyncio.get_running_loop().call_later(
                IDLE_S, self._stop_when_idle, 0.0
            )
        return faults

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    # -- in a thread -------------------------------------------------------------------------------

    def _ask(self, request: tuple[Any, ...]) -> list[str]:
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            if self._child is not None and self._child.poll() is not None:
                self._kill_child()  # it was killed meanwhile
            if self._child is None:
                self._child = confine.start_process(checker_child.__name__)
            answer = _exchange(self._child, line)
            if not answer.endswith(b"\n"):  # it ended, or must be killed
                self._kill_child()
                raise CheckLimitExceeded
        faults: list[str] = json.loads(answer)
        return faults

    def _stop_when_idle(self, timeout_s: float) -> None:
        """Stop the process, unless it is busy for longer than `timeout_s`."""
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._kill_child()
            finally:
                self._lock.release()

    def _kill_child(self) -> None:
        process, self._child = self._child, None
        if process is not None:
            with process:
                process.kill()


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Send one line and return the reply; an incomplete line if the process ended or timed out."""
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
