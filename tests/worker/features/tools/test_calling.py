"""One tool call: async or in a thread, timeout, cancel, and all kinds of failures."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from sluice.common import codec
from sluice.common.errors import StoreUnavailable
from sluice.worker.errors import AttemptLost, JobError, TransientError
from sluice.worker.features.tools import call as calling
from sluice.worker.features.tools.call import ToolOutput
from sluice.worker.features.tools.errors import CallCanceled, ToolFailed, ToolTimeout
from sluice.worker.features.tools.tool import Call
from sluice.worker.features.tools.toolbox import ToolBox
from tests.support.worker.model import FakeJob
from tests.support.worker.timing import at_best_within
from tests.support.worker.tools import ANYTHING, raising, returning

#: Limit from a request to its effect.
PROMPTLY_S = 0.25


async def call(
    function: Any, job: FakeJob | None = None, arguments: Any = None, **terms: Any
) -> ToolOutput:
    toolbox = ToolBox(timeout_s=60.0, output_bytes=200)
    toolbox.add(function, name="t", description="x", parameters=ANYTHING, **terms)
    return await toolbox.call(toolbox.find("t"), arguments or {}, job or FakeJob(), "job-1:call")


async def test_an_async_tool_and_a_plain_one() -> None:
    async def one(call: Call, arguments: Any) -> Any:
        return {"key": call.key, "tenant": call.tenant, "job": call.job_id, **arguments}

    def in_thread(call: Call, arguments: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return call.remaining_s

    output = await call(one, arguments={"a": 1})
    assert output.value == {"key": "job-1:call", "tenant": "acme", "job": "job-1", "a": 1}
    assert 30 < (await call(in_thread)).value <= 60
    assert (await call(in_thread, timeout_s=20)).value <= 20


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    ended, thread_ended = asyncio.Event(), threading.Event()

    async def slow(call: Call, arguments: Any) -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def slow_thread(call: Call, arguments: Any) -> Any:
        while not call.stopped:
            time.sleep(0.005)
        thread_ended.set()

    for repeatable in (False, True):  # its effect is unknown
        with pytest.raises(ToolTimeout, match=r"t took longer than 0.05 s") as caught:
            await call(slow, timeout_s=0.05, repeatable=repeatable)
        assert (caught.value.kind, caught.value.permanent) == ("tool_timeout", not repeatable)
        assert ended.is_set()
    with pytest.raises(ToolTimeout):
        await call(slow_thread, timeout_s=0.05)
    assert await asyncio.to_thread(thread_ended.wait, 5)


async def test_a_tool_that_does_not_stop_is_abandoned() -> None:
    free = asyncio.Event()

    async def stubborn(call: Call, arguments: Any) -> Any:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    async def trial() -> float:
        began = time.monotonic()
        with pytest.raises(ToolTimeout):
            await asyncio.wait_for(call(stubborn, timeout_s=0.05), 30)
        return time.monotonic() - began

    await at_best_within(0.05 + calling.STOP_GRACE_S + 1, trial)
    free.set()


@pytest.mark.parametrize("kind", ["async", "plain", "stubborn"])
async def test_cancel_stops_the_waiting_at_once(kind: str) -> None:
    running = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def waits(call: Call, arguments: Any) -> Any:
        running.set()
        await asyncio.sleep(60)

    def blocks(call: Call, arguments: Any) -> Any:
        loop.call_soon_threadsafe(running.set)
        while not call.stopped:
            time.sleep(0.005)

    async def swallows(call: Call, arguments: Any) -> Any:
        running.set()
        while not call.stopped:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.5)

    async def trial() -> float:
        job = FakeJob()
        running.clear()
        function = {"async": waits, "plain": blocks, "stubborn": swallows}[kind]
        calling_it = asyncio.create_task(call(function, job))
        await asyncio.wait_for(running.wait(), 10)
        began = time.monotonic()
        job.cancel()
        with pytest.raises(CallCanceled):
            await asyncio.wait_for(calling_it, 10)
        return time.monotonic() - began

    await at_best_within(PROMPTLY_S, trial)


async def test_canceling_the_caller_stops_the_tool() -> None:
    running, ended = asyncio.Event(), asyncio.Event()

    async def waits(call: Call, arguments: Any) -> Any:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    calling_it = asyncio.create_task(call(waits))
    await asyncio.wait_for(running.wait(), 5)
    calling_it.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling_it
    assert ended.is_set()


class Own(JobError):
    kind = "own"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def test_any_exception_of_a_tool_is_a_failure() -> None:
    errors: list[tuple[BaseException, str]] = [
        (ValueError("bad"), "t: ValueError: bad"),
        (KeyError("k"), "t: KeyError: 'k'"),
        (SystemExit(3), "t: SystemExit: 3"),
        (RuntimeError(), "t: RuntimeError"),
        (Unprintable(), "t: Unprintable"),
        (RuntimeError("x" * 5000), "t: RuntimeError: xxx"),
    ]

    def in_thread(call: Call, arguments: Any) -> Any:
        raise error

    for error, text in errors:
        for function in (raising(error), in_thread):
            with pytest.raises(ToolFailed) as caught:
                await call(function)
            assert str(caught.value).startswith(text)
            assert len(str(caught.value)) < 1100
            assert (caught.value.kind, caught.value.permanent) == ("tool_failed", False)


@pytest.mark.parametrize(
    "error", [Own("no"), TransientError("later"), AttemptLost(), StoreUnavailable("gone")]
)
async def test_job_errors_of_a_tool_are_kept(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        await call(raising(error))
    assert caught.value is error
    with pytest.raises(ToolFailed, match="canceled itself"):
        await call(raising(asyncio.CancelledError()))


async def test_json_values_are_returned() -> None:
    value: Any
    for value in (None, 1, 2**70, "text", [1, {"a": None}], {"b": 1.5}, True):
        output = await call(returning(value))
        assert output.value == value
        assert not output.truncated
    assert (await call(returning("a\ud800b"))).value == "a?b"
    for value in (object(), {1, 2}, b"bytes", [object()]):
        with pytest.raises(ToolFailed, match="not JSON"):
            await call(returning(value))


async def test_long_output_is_truncated_with_a_note() -> None:
    values: list[Any] = ["x" * 1000, ["y" * 10] * 100, "\x00" * 1000, "é" * 500, '"' * 1000]
    for value in (*values, "\n" * 201):
        output = await call(returning(value))
        assert output.truncated
        assert isinstance(output.value, str)
        assert "[truncated: the whole output has" in output.value
        assert len(codec.dumps(output.value)) <= 202
        assert output.text == output.value
    output = await call(returning("x" * 1000), output_bytes=5000)  # the tool's own limit
    assert output.value == "x" * 1000
