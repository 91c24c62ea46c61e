"""The checker process may die; the worker continues."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluice.worker.errors import TransientError
from sluice.worker.execution.process_pool import confine
from sluice.worker.features.model.checker import checker as module
from sluice.worker.features.model.checker import child as checker_child
from sluice.worker.features.model.checker.checker import Checker, CheckLimitExceeded
from tests.support.waiting import eventually

REDOS = {"type": "string", "pattern": "^(a+)+$"}
HARD = "a" * 64 + "!"


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker()
    yield checker
    await checker.close()


def pid_of(checker: Checker) -> int:
    assert checker._child is not None
    return checker._child.pid


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_loop_is_not_blocked_by_an_endless_check(checker: Checker) -> None:
    await checker.python_faults("")  # start the process
    checking = asyncio.ensure_future(checker.value_faults(REDOS, HARD))
    turns = 0
    while not checking.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(CheckLimitExceeded):
        checking.result()
    assert turns > 20
    assert await checker.value_faults(REDOS, "aaa") == []


async def test_a_killed_process_is_replaced(checker: Checker) -> None:
    await checker.python_faults("")
    first = pid_of(checker)
    os.kill(first, 9)
    await eventually(lambda: checker._child is not None and checker._child.poll() is not None)
    assert await checker.python_faults("a = ") != []
    assert pid_of(checker) != first
    # An abandoned check does no harm, whether or not it has ended.
    checking = asyncio.ensure_future(checker.value_faults(REDOS, "a" * 22 + "!"))
    await asyncio.sleep(0)
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert await checker.python_faults("a = 1") == []


async def test_an_idle_process_is_stopped(checker: Checker, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    await checker.python_faults("")
    pid = pid_of(checker)
    await eventually(lambda: checker._child is None)
    assert not alive(pid)
    assert await checker.python_faults("") == []


async def test_a_stopped_process_is_abandoned(checker: Checker, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WALL_S", 0.3)
    checker._child = confine.start_process(checker_child.__name__)
    os.kill(pid_of(checker), 19)  # SIGSTOP
    began = time.monotonic()
    with pytest.raises(CheckLimitExceeded):
        await checker.python_faults("a = 1")
    assert time.monotonic() - began < 20  # less than in production


async def test_a_process_that_cannot_be_started(checker: Checker, monkeypatch: Any) -> None:
    monkeypatch.setattr(confine.sys, "executable", "/does/not/exist")
    with pytest.raises(TransientError):
        await checker.python_faults("a = 1")


async def test_checks_share_a_process_without_secrets(checker: Checker, monkeypatch: Any) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    await checker.python_faults("a = 1")
    first = pid_of(checker)
    found = await asyncio.gather(*(checker.python_faults(f"a = {n}") for n in range(20)))
    assert found == [[]] * 20
    assert pid_of(checker) == first
    with open(f"/proc/{first}/environ") as environ:
        assert "secret" not in environ.read()
    for _ in range(5):  # together longer than the time limit of one
        assert await checker.value_faults({"uniqueItems": True}, list(map(str, range(1500)))) == []
    # Problems have a location and are limited.
    schema = {"properties": {"a/b": {"items": {"type": "integer"}}}, "required": ["c"]}
    assert await checker.schema_faults(schema) == []
    assert await checker.value_faults(schema, {"a/b": [1], "c": None}) == []
    assert await checker.value_faults(schema, {"a/b": [1, "x"]}) == [
        "at \"/a~1b/1\": 'x' is not of type 'integer'",
        "at \"\": 'c' is a required property",
    ]
    assert pid_of(checker) == first
    await checker.close()
    assert not alive(first)
    await checker.close()
