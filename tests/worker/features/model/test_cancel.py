"""Canceling an answer stops the server's work at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.conftest import eventually
from tests.support.model_answers import Answer, text_answer, tokens
from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import ClientRig, FakeJob, RecordingSink

#: Limit from the request to the server noticing it, on a machine that may stall: much less than the
#: answers take. `test_jobs` measures it exactly.
SOON_S = 10.0


async def test_a_canceled_job_keeps_its_partial_answer(
    server: ModelServer, client_rig: ClientRig
) -> None:
    read = {"choices": [], "prompt_progress": {"total": 30, "processed": 30}}
    server.add_answers(Answer([read, *tokens("word " * 6000, 0.01)]))
    job, notes = FakeJob(), RecordingSink()
    asking = asyncio.ensure_future(client_rig.ask(sink=notes, job=job))
    await notes.some(6)
    began = time.monotonic()
    job.cancel()
    answer = await asking
    assert answer.canceled
    assert answer.text.startswith(notes.received)
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
async def test_canceled_while_the_server_sends_nothing(
    server: ModelServer, client_rig: ClientRig, answer: Answer
) -> None:
    server.add_answers(answer)
    job = FakeJob()
    asking = asyncio.ensure_future(client_rig.ask(job=job))
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


async def test_canceled_while_it_waits_for_a_slot(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.set_default(Answer([60.0]))
    jobs = [FakeJob() for _ in range(3)]
    asking = [asyncio.ensure_future(client_rig.ask(job=job)) for job in jobs]
    await server.wait_for_request(2)
    assert client_rig.client.reading().waiting == 1
    jobs[2].cancel()
    answer = await asyncio.wait_for(asking[2], SOON_S)
    assert (answer.canceled, answer.text) == (True, "")
    assert (client_rig.client.reading().busy, client_rig.client.reading().waiting) == (2, 0)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*asking)
    assert len(server.requests) == 2


async def test_canceled_between_two_tries(
    server: ModelServer, client_rig: ClientRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features.model.requests.MOST_INLINE_WAIT_S", 60.0)
    server.set_default(Answer(status=503, body=b"busy", headers={"Retry-After": "60"}))
    job = FakeJob()
    asking = asyncio.ensure_future(client_rig.ask(job=job))
    seen = await server.wait_for_request(1)
    await seen.over.wait()
    job.cancel()
    assert (await asyncio.wait_for(asking, SOON_S)).canceled
    assert len(server.requests) == 1


async def test_a_job_canceled_before_the_request(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.add_answers(text_answer("word " * 1000, 0.01))
    job = FakeJob()
    job.cancel()
    assert (await client_rig.ask(job=job)).canceled
    assert client_rig.client.reading().busy == 0


async def test_an_incomplete_tool_call_is_dropped(
    server: ModelServer, client_rig: ClientRig
) -> None:
    piece = {"index": 0, "id": "a", "function": {"name": "rm", "arguments": '{"pa'}}
    server.add_answers(Answer([{"content": "so"}, {"tool_calls": [piece]}, 60.0]))
    job = FakeJob()
    asking = asyncio.ensure_future(client_rig.ask(job=job))
    seen = await server.wait_for_request(1)
    await eventually(lambda: seen.tokens == 2)
    await asyncio.sleep(0.02)
    job.cancel()
    answer = await asking
    assert (answer.canceled, answer.tool_calls, answer.text) == (True, (), "so")


async def test_a_canceled_task_closes_the_connection(
    server: ModelServer, client_rig: ClientRig
) -> None:
    """A timeout, a lost attempt and a stopping worker all cancel the handler's task."""
    server.add_answers(text_answer("word " * 6000, 0.01))
    notes = RecordingSink()
    asking = asyncio.ensure_future(client_rig.ask(sink=notes))
    await notes.some(3)
    began = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    seen = server.requests[0]
    await asyncio.wait_for(seen.over.wait(), SOON_S)
    assert seen.hung_up
    assert seen.ended - began < SOON_S
    assert client_rig.client.reading().busy == 0
    assert (await client_rig.ask("count to 1")).text == "1"


async def test_a_hundred_canceled_answers_leave_nothing_behind(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.set_default(text_answer("word " * 1000, 0.01))
    for _ in range(100):
        job, notes = FakeJob(), RecordingSink()
        asking = asyncio.ensure_future(client_rig.ask(sink=notes, job=job))
        await notes.some(1)
        job.cancel()
        assert (await asking).canceled
    await eventually(lambda: server.active == 0)
    assert all(seen.hung_up for seen in server.requests)
    assert len(client_rig.client._http.open()._transport._pool.connections) <= 2  # type: ignore[attr-defined]
