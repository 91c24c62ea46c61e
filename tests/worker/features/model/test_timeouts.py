"""Requests that end early: each timeout has its own error, and a cancel stops the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import pytest

from sluice.common.aio import STALL_THRESHOLD_S
from sluice.common.contracts.workers import ModelState
from sluice.worker.errors import NotNow
from sluice.worker.features.model.errors import (
    FirstTokenTimeout,
    IdleTimeout,
    ModelConnectTimeout,
    ModelTooSlow,
    TotalTimeout,
)
from sluice.worker.features.model.timeouts import ModelTimeouts, Stopwatch
from tests.support.model.answers import Answer, text_answer, tokens
from tests.support.waiting import eventually
from tests.support.worker.model import FakeJob, MakeModel, ModelHarness, RecordingSink

#: One short timeout each, so that on a stalled machine no other one expires first.
FIRST = {"model_first_token_timeout_s": 0.5}
IDLE = {"model_idle_timeout_s": 0.4}
TOTAL = {"model_total_timeout_s": 1.0}
PINGS: list[Any] = [0.05, b": ping\n\n"] * 100
EMPTY_DELTAS: list[Any] = [0.05, {}] * 100


class Clock:
    """Clock of stopwatches, advanced by the test."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(
        "sluice.worker.features.model.requests.Stopwatch",
        lambda budgets: Stopwatch(budgets, lambda: made.now),
    )
    return made


@pytest.mark.parametrize(
    ("budget", "answer", "error", "words"),
    [
        (FIRST, Answer(tokens("late"), before=30.0), FirstTokenTimeout,
         "0.5 s; .*MODEL_FIRST_TOKEN_TIMEOUT_S"),
        (FIRST, Answer([30.0, *tokens("late")]), FirstTokenTimeout, "FIRST_TOKEN"),
        (FIRST, Answer([{"role": "assistant"}, *PINGS]), FirstTokenTimeout, "FIRST_TOKEN"),
        (IDLE, Answer([*tokens("a b"), 30.0]), IdleTimeout, "0.4 s .*MODEL_IDLE_TIMEOUT_S"),
        (IDLE, Answer([*tokens("a b"), *PINGS]), IdleTimeout, "IDLE"),
        (IDLE, Answer([*tokens("a b"), *EMPTY_DELTAS]), IdleTimeout, "IDLE"),
        (TOTAL, text_answer("word " * 99, 0.05), TotalTimeout, "1 s .*MODEL_TOTAL_TIMEOUT_S"),
    ],
    ids=["no status line", "no token", "only pings", "idle", "idle with pings",
         "idle with empty deltas", "total"],
)  # fmt: skip
async def test_each_timeout(
    make_model: MakeModel,
    budget: dict[str, float],
    answer: Answer,
    error: type[ModelTooSlow],
    words: str,
) -> None:
    model = await make_model(**budget)
    model.server.add_answers(answer)
    with pytest.raises(error, match=words) as caught:
        await model.ask()
    assert not caught.value.permanent
    seen = model.server.requests[0]
    await asyncio.wait_for(seen.over.wait(), 10)
    assert seen.hung_up
    model.client._requester._timeouts = ModelTimeouts()  # not limited in this test
    model.server.add_text("fine again")
    assert (await model.ask()).text == "fine again"
    assert len(model.server.requests) == 2, "a slow request is not repeated"


class StallingSink(RecordingSink):
    """Stalls the whole process after the first word, until after the timeout."""

    async def text(self, delta: str) -> None:
        if not self.pieces:
            seconds = IDLE["model_idle_timeout_s"] + STALL_THRESHOLD_S + 0.1
            asyncio.get_running_loop().call_soon(time.sleep, seconds)
        await super().text(delta)


async def test_after_a_stall_received_tokens_are_read_first(make_model: MakeModel) -> None:
    model = await make_model(**IDLE)
    model.server.add_text("one two", 0.1)
    assert (await model.ask(sink=StallingSink())).text == "one two"
    # A server that stays idle still times out.
    model.server.add_answers(Answer([*tokens("one"), 30.0]))
    with pytest.raises(IdleTimeout):
        await asyncio.wait_for(model.ask(sink=StallingSink()), 20)


async def test_a_server_that_does_not_close_the_stream(
    model: ModelHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.worker.features.model.timeouts.TRAILER_TIMEOUT_S", 0.2)
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    model.server.add_answers(Answer([*tokens("a b"), end, 30.0], finish=None, done=False))
    answer = await asyncio.wait_for(model.ask(), 20)
    assert (answer.text, answer.finish_reason) == ("a b", "stop")


async def test_a_slow_sink_is_not_the_servers_fault(make_model: MakeModel, clock: Clock) -> None:
    class Slow(RecordingSink):
        async def text(self, delta: str) -> None:
            await super().text(delta)
            clock.now += 1.0  # longer than the idle timeout
            await asyncio.sleep(0.2)  # an armed timer would fire by now

    model = await make_model(model_idle_timeout_s=0.05)
    model.server.add_text("one two")
    assert (await model.ask(sink=Slow())).text == "one two"


async def test_a_host_that_takes_no_connections(make_model: MakeModel) -> None:
    with socket.socket() as deaf, contextlib.ExitStack() as taken:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # Connections in its backlog are never accepted; further ones time out.
        for _ in range(8):
            each = taken.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        model = await make_model(None, watching=False, model_url=url, model_connect_timeout_s=0.2)
        assert model.limits.slots == 0
        model.client._monitor._set_state(ModelState.READY, "")
        with pytest.raises(ModelConnectTimeout, match=r"0\.2 s.*MODEL_CONNECT_TIMEOUT_S") as caught:
            await model.ask()
        assert isinstance(caught.value, NotNow)


async def test_waiting_for_a_slot_does_not_count(make_model: MakeModel, clock: Clock) -> None:
    go = asyncio.Event()
    model = await make_model(model_first_token_timeout_s=0.05, model_total_timeout_s=0.05)
    model.server.set_default(Answer(tokens("a b c"), before=go))
    async with contextlib.AsyncExitStack() as taken:
        for _ in range(model.server.slots):
            await taken.enter_async_context(model.client._monitor.semaphore)
        asking = [model.asking() for _ in range(8)]
        await eventually(lambda: model.client.reading().waiting == len(asking))
        clock.now += 1.0  # longer than any timeout
        await asyncio.sleep(0.2)  # an armed timer would fire by now
        assert not any(asked.done() for asked in asking)
    await model.server.wait_for_request(2)
    assert model.client.reading().waiting == 6
    go.set()
    answers = await asyncio.gather(*asking)
    assert {(answer.text, answer.ms) for answer in answers} == {("a b c", 0)}
    assert model.server.most_active == 2


async def test_retries_do_not_exceed_the_timeout_of_the_job(model: ModelHarness) -> None:
    job = FakeJob()
    job.remaining_s = 0.05
    await model.server.stop()
    with pytest.raises(NotNow):
        await model.ask(job=job)
    assert model.server.paths.count("/v1/chat/completions") == 0


def test_a_stopwatch_returns_the_next_deadline() -> None:
    now = [100.0]
    watch = Stopwatch(ModelTimeouts(1, 10, 3, 60), lambda: now[0])
    assert watch.left_s is None
    watch.start()
    assert watch.left_s == 60
    watch.ask()
    assert watch.left_s == 10
    now[0] += 4
    watch.mark_token()
    assert (watch.left_s, watch.first_token_s) == (3, 4)
    watch.pause()
    assert (watch.left_s, watch.timeout_error()) == (56, None)
    watch.mark_token()
    now[0] += 3
    assert (watch.left_s, watch.first_token_s) == (0, 4)
    assert isinstance(watch.timeout_error(), IdleTimeout)
    now[0] += 60
    assert isinstance(watch.timeout_error(), TotalTimeout)


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
    monkeypatch.setattr("sluice.worker.features.model.requests.MOST_INLINE_WAIT_S", 60.0)
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
