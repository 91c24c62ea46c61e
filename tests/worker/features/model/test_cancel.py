"""Canceling an answer stops the server's work at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.model.answers import Answer, text_answer, tokens
from tests.support.waiting import eventually
from tests.support.worker.model import FakeJob, ModelHarness, RecordingSink

#: Limit from the request to the server noticing it, on a machine that may stall: much less than the
#: answers take. `test_jobs` measures it exactly.
SOON_S = 10.0


@pytest.mark.parametrize("what", ["job", "task"])
async def test_cancel_closes_the_connection(model: ModelHarness, what: str) -> None:
    """A canceled job keeps its partial answer; a timeout or a stopping worker cancels the task."""
    read = {"choices": [], "prompt_progress": {"total": 30, "processed": 30}}
    model.server.add_answers(Answer([read, *tokens("word " * 6000, 0.01)]))
    job, sink = FakeJob(), RecordingSink()
    asking = model.asking(sink, job)
    await sink.some(6)
    began = time.monotonic()
    if what == "job":
        job.cancel()
        answer = await asking
        assert answer.canceled
        assert answer.text.startswith(sink.received)
        assert answer.usage.prompt_tokens == 30
        assert answer.usage.completion_tokens >= 5
    else:
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    seen = model.server.requests[0]
    await asyncio.wait_for(seen.over.wait(), SOON_S)
    assert seen.hung_up
    assert seen.ended - began < SOON_S
    assert model.client.reading().busy == 0
    assert (await model.ask("count to 1")).text == "1"


CALL = {"index": 0, "id": "a", "function": {"name": "rm", "arguments": '{"pa'}}


@pytest.mark.parametrize(
    ("answer", "sent", "text"),
    [
        pytest.param(Answer(tokens("late"), before=60.0), 0, "", id="before the status line"),
        pytest.param(Answer([60.0]), 0, "", id="before the first token"),
        pytest.param(Answer([*tokens("a"), 60.0]), 1, "a", id="between tokens"),
        pytest.param(
            Answer([*tokens("so"), {"tool_calls": [CALL]}, 60.0]), 2, "so", id="in a tool call"
        ),
    ],
)
async def test_canceled_while_the_server_sends_nothing(
    model: ModelHarness, answer: Answer, sent: int, text: str
) -> None:
    job, asking, seen = await model.begin(answer)
    await eventually(lambda: seen.tokens == sent)
    await asyncio.sleep(0.02)
    job.cancel()
    got = await asyncio.wait_for(asking, SOON_S)
    assert (got.canceled, got.text, got.tool_calls) == (True, text, ())  # never half a call
    await asyncio.wait_for(seen.over.wait(), SOON_S)
    assert seen.hung_up


async def test_canceled_while_it_waits_for_a_slot(model: ModelHarness) -> None:
    model.server.set_default(Answer([60.0]))
    jobs = [FakeJob() for _ in range(3)]
    asking = [model.asking(job=job) for job in jobs]
    await model.server.wait_for_request(2)
    assert model.client.reading().waiting == 1
    jobs[2].cancel()
    answer = await asyncio.wait_for(asking[2], SOON_S)
    assert (answer.canceled, answer.text) == (True, "")
    assert (model.client.reading().busy, model.client.reading().waiting) == (2, 0)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*asking)
    assert len(model.server.requests) == 2


async def test_canceled_between_two_tries(
    model: ModelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.features.model.requests.MOST_INLINE_WAIT_S", 60.0)
    busy = Answer(status=503, body=b"busy", headers={"Retry-After": "60"})
    job, asking, seen = await model.begin(busy)
    await seen.over.wait()
    job.cancel()
    assert (await asyncio.wait_for(asking, SOON_S)).canceled
    assert len(model.server.requests) == 1


async def test_a_job_canceled_before_the_request(model: ModelHarness) -> None:
    model.server.add_answers(text_answer("word " * 1000, 0.01))
    job = FakeJob()
    job.cancel()
    assert (await model.ask(job=job)).canceled
    assert model.client.reading().busy == 0


async def test_many_canceled_answers_leave_nothing_behind(model: ModelHarness) -> None:
    model.server.set_default(text_answer("word " * 1000, 0.01))
    for _ in range(30):
        job, sink = FakeJob(), RecordingSink()
        asking = model.asking(sink, job)
        await sink.some(1)
        job.cancel()
        assert (await asking).canceled
    await eventually(lambda: model.server.active == 0)
    assert all(seen.hung_up for seen in model.server.requests)
    assert len(model.client._http.open()._transport._pool.connections) <= 2  # type: ignore[attr-defined]
