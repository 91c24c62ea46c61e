"""Canceling an answer stops the server's work at once, whoever wants it stopped."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.conftest import eventually
from tests.support.model_answers import Answer, text_answer, tokens
from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import Box, FakeJob, Notes

#: From the wish to the server that sees it, on a machine that may stand still: much less than
#: the answers here would take. `test_jobs` measures.
SOON_S = 10.0


async def test_a_canceled_job_keeps_what_was_said(server: ModelServer, box: Box) -> None:
    read = {"choices": [], "prompt_progress": {"total": 30, "processed": 30}}
    server.add_answers(Answer([read, *tokens("word " * 6000, 0.01)]))
    job, notes = FakeJob(), Notes()
    asking = asyncio.ensure_future(box.ask(sink=notes, job=job))
    await notes.some(6)
    began = time.monotonic()
    job.cancel()
    answer = await asking
    assert answer.canceled
    assert answer.text.startswith(notes.said)
    assert answer.usage.prompt_tokens == 30
    assert answer.usage.completion_tokens >= 5
    seen = server.requests[0]
    await asyncio.wait_for(seen.over.wait(), SOON_S)
    assert seen.hung_up
    assert seen.ended - began < SOON_S


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer(tokens("late"), before=60.0), id="before the status line"),
        pytest.param(Answer([60.0]), id="before the first token"),
        pytest.param(Answer([*tokens("a"), 60.0]), id="in a silence"),
    ],
)
async def test_canceled_while_the_server_is_silent(
    server: ModelServer, box: Box, answer: Answer
) -> None:
    server.add_answers(answer)
    job = FakeJob()
    asking = asyncio.ensure_future(box.ask(job=job))
    seen = await server.wait_for_request(1)
    await eventually(
        lambda: (
            seen.tokens == len([s for s in answer.steps if isinstance(s, dict)])
            or (isinstance(answer.before, float) and answer.before)
        )
    )
    job.cancel()
    answered = await asyncio.wait_for(asking, SOON_S)
    assert answered.canceled
    await asyncio.wait_for(seen.over.wait(), SOON_S)
    assert seen.hung_up


async def test_canceled_while_it_waits_for_a_slot(server: ModelServer, box: Box) -> None:
    server.set_default(Answer([60.0]))
    jobs = [FakeJob() for _ in range(3)]
    asking = [asyncio.ensure_future(box.ask(job=job)) for job in jobs]
    await server.wait_for_request(2)
    assert box.client.reading().waiting == 1
    jobs[2].cancel()
    answer = await asyncio.wait_for(asking[2], SOON_S)
    assert (answer.canceled, answer.text) == (True, "")
    assert (box.client.reading().busy, box.client.reading().waiting) == (2, 0)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*asking)
    assert len(server.requests) == 2


async def test_canceled_between_two_tries(
    server: ModelServer, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features.model.requests.MOST_INLINE_WAIT_S", 60.0)
    server.set_default(Answer(status=503, body=b"busy", headers={"Retry-After": "60"}))
    job = FakeJob()
    asking = asyncio.ensure_future(box.ask(job=job))
    seen = await server.wait_for_request(1)
    await seen.over.wait()
    job.cancel()
    assert (await asyncio.wait_for(asking, SOON_S)).canceled
    assert len(server.requests) == 1


async def test_a_job_that_was_canceled_before_asks_nobody_for_long(
    server: ModelServer, box: Box
) -> None:
    server.add_answers(text_answer("word " * 1000, 0.01))
    job = FakeJob()
    job.cancel()
    assert (await box.ask(job=job)).canceled
    assert box.client.reading().busy == 0


async def test_half_a_tool_call_is_none(server: ModelServer, box: Box) -> None:
    piece = {"index": 0, "id": "a", "function": {"name": "rm", "arguments": '{"pa'}}
    server.add_answers(Answer([{"content": "so"}, {"tool_calls": [piece]}, 60.0]))
    job = FakeJob()
    asking = asyncio.ensure_future(box.ask(job=job))
    seen = await server.wait_for_request(1)
    await eventually(lambda: seen.tokens == 2)
    await asyncio.sleep(0.02)
    job.cancel()
    answer = await asking
    assert (answer.canceled, answer.tool_calls, answer.text) == (True, (), "so")


async def test_a_canceled_task_hangs_up_too(server: ModelServer, box: Box) -> None:
    """A timeout, a lost attempt, a stopping worker: all cancel the handler's task."""
    server.add_answers(text_answer("word " * 6000, 0.01))
    notes = Notes()
    asking = asyncio.ensure_future(box.ask(sink=notes))
    await notes.some(3)
    began = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    seen = server.requests[0]
    await asyncio.wait_for(seen.over.wait(), SOON_S)
    assert seen.hung_up
    assert seen.ended - began < SOON_S
    assert box.client.reading().busy == 0
    assert (await box.ask("count to 1")).text == "1"


async def test_a_hundred_canceled_answers_leave_nothing_behind(
    server: ModelServer, box: Box
) -> None:
    server.set_default(text_answer("word " * 1000, 0.01))
    for _ in range(100):
        job, notes = FakeJob(), Notes()
        asking = asyncio.ensure_future(box.ask(sink=notes, job=job))
        await notes.some(1)
        job.cancel()
        assert (await asking).canceled
    await eventually(lambda: server.active == 0)
    assert all(seen.hung_up for seen in server.requests)
    assert len(box.client._http.open()._transport._pool.connections) <= 2  # type: ignore[attr-defined]
