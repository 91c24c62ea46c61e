"""Slow servers: each timeout has its own error with its setting and value."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from common.aio import STALL_THRESHOLD_S
from tests.conftest import eventually
from tests.support.model_answers import Answer, text_answer, tokens
from tests.support.model_server import ModelServer
from tests.worker.features.model.kit import (
    ClientRig,
    FakeJob,
    RecordingSink,
    open_client,
    settings_for,
)
from worker.errors import NotNow
from worker.features.model.errors import (
    FirstTokenTimeout,
    IdleTimeout,
    ModelConnectTimeout,
    ModelTooSlow,
    TotalTimeout,
)
from worker.features.model.timeouts import TRAILER_TIMEOUT_S, ModelTimeouts, Stopwatch

#: One short timeout each, so that on a stalled machine no other one expires first.
FIRST = {"model_first_token_timeout_s": 0.9}
IDLE = {"model_idle_timeout_s": 0.6}
TOTAL = {"model_total_timeout_s": 2.5}


class Clock:
    """Clock of stopwatches, advanced by the test."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(
        "worker.features.model.requests.Stopwatch",
        lambda budgets: Stopwatch(budgets, lambda: made.now),
    )
    return made


@pytest.mark.parametrize(
    ("budget", "answer", "error", "words"),
    [
        pytest.param(
            FIRST,
            Answer(tokens("late"), before=30.0),
            FirstTokenTimeout,
            "0.9 s; .*MODEL_FIRST_TOKEN_TIMEOUT_S",
            id="no status line",
        ),
        pytest.param(
            FIRST, Answer([30.0, *tokens("late")]), FirstTokenTimeout, "FIRST_TOKEN", id="no token"
        ),
        pytest.param(
            FIRST,
            Answer([{"role": "assistant"}, *([0.05, b": ping\n\n"] * 100), *tokens("late")]),
            FirstTokenTimeout,
            "FIRST_TOKEN",
            id="only pings",
        ),
        pytest.param(
            IDLE,
            Answer([*tokens("a b"), 30.0]),
            IdleTimeout,
            "0.6 s .*MODEL_IDLE_TIMEOUT_S",
            id="idle",
        ),
        pytest.param(
            IDLE,
            Answer([*tokens("a b"), *([0.05, b": ping\n\n"] * 100)]),
            IdleTimeout,
            "IDLE",
            id="idle with pings",
        ),
        pytest.param(
            IDLE,
            Answer([*tokens("a b"), *([0.05, {}] * 100)]),
            IdleTimeout,
            "IDLE",
            id="idle with empty deltas",
        ),
        pytest.param(
            TOTAL,
            text_answer("word " * 99, 0.05),
            TotalTimeout,
            "2.5 s .*MODEL_TOTAL_TIMEOUT_S",
            id="total",
        ),
    ],
)
async def test_each_timeout(
    server: ModelServer,
    tmp_path: Path,
    budget: dict[str, float],
    answer: Answer,
    error: type[ModelTooSlow],
    words: str,
) -> None:
    async with open_client(settings_for(server, tmp_path, **budget)) as client_rig:
        server.add_answers(answer)
        with pytest.raises(error, match=words) as caught:
            await client_rig.ask()
        assert not caught.value.permanent
        seen = server.requests[0]
        await asyncio.wait_for(seen.over.wait(), 10)
        assert seen.hung_up, "the server is told"
        client_rig.client._requester._timeouts = ModelTimeouts()  # not limited in this test
        server.add_text("fine again")
        assert (await client_rig.ask()).text == "fine again"
        assert len(server.requests) == 2, "slow is not asked twice"


class StallingSink(RecordingSink):
    """Stalls the whole process after the first word, until after the timeout."""

    async def text(self, delta: str) -> None:
        if not self.pieces:
            seconds = IDLE["model_idle_timeout_s"] + STALL_THRESHOLD_S + 0.1
            asyncio.get_running_loop().call_soon(time.sleep, seconds)
        await super().text(delta)


async def test_tokens_received_during_a_stall_are_read_first(
    server: ModelServer, tmp_path: Path
) -> None:
    server.add_text("one two", 0.1)
    async with open_client(settings_for(server, tmp_path, **IDLE)) as client_rig:
        assert (await client_rig.ask(sink=StallingSink())).text == "one two"


async def test_after_a_stall_an_idle_server_still_times_out(
    server: ModelServer, tmp_path: Path
) -> None:
    server.add_answers(Answer([*tokens("one"), 30.0]))
    async with open_client(settings_for(server, tmp_path, **IDLE)) as client_rig:
        with pytest.raises(IdleTimeout):
            await asyncio.wait_for(client_rig.ask(sink=StallingSink()), 20)


async def test_a_server_that_does_not_close_the_stream(
    server: ModelServer, client_rig: ClientRig
) -> None:
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    server.add_answers(Answer([*tokens("a b"), end, 30.0], finish=None, done=False))
    answer = await asyncio.wait_for(client_rig.ask(), TRAILER_TIMEOUT_S + 18)
    assert (answer.text, answer.finish_reason) == ("a b", "stop")


async def test_a_slow_sink_is_not_the_servers_fault(
    server: ModelServer, tmp_path: Path, clock: Clock
) -> None:
    class Slow(RecordingSink):
        async def text(self, delta: str) -> None:
            await super().text(delta)
            clock.now += 1.0  # longer than the idle timeout
            await asyncio.sleep(0.2)  # an armed timer would fire by now

    server.add_text("one two")
    async with open_client(settings_for(server, tmp_path, model_idle_timeout_s=0.05)) as client_rig:
        assert (await client_rig.ask(sink=Slow())).text == "one two"


async def test_a_host_that_takes_no_connections(tmp_path: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        # Connections in its backlog are never accepted; further ones time out.
        taken = [socket.socket() for _ in range(8)]
        for each in taken:
            each.setblocking(False)
            each.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        settings = settings_for(None, tmp_path, model_url=url, model_connect_timeout_s=0.2)
        try:
            async with open_client(settings, watching=False) as client_rig:
                assert client_rig.limits.slots == 0
                client_rig.client._monitor._set_state(client_rig.client._monitor.state.READY, "")
                with pytest.raises(ModelConnectTimeout, match="MODEL_CONNECT_TIMEOUT_S") as caught:
                    await client_rig.ask()
                assert isinstance(caught.value, NotNow)
                assert "0.2 s" in str(caught.value)
        finally:
            for each in taken:
                each.close()


async def test_waiting_for_a_slot_does_not_count(
    server: ModelServer, tmp_path: Path, clock: Clock
) -> None:
    go = asyncio.Event()
    server.slots = 2
    server.set_default(Answer(tokens("a b c"), before=go))
    short = {"model_first_token_timeout_s": 0.05, "model_total_timeout_s": 0.05}
    async with open_client(settings_for(server, tmp_path, **short)) as client_rig:
        async with contextlib.AsyncExitStack() as taken:
            for _ in range(server.slots):
                await taken.enter_async_context(client_rig.client._monitor.semaphore)
            asking = [asyncio.ensure_future(client_rig.ask()) for _ in range(8)]
            await eventually(lambda: client_rig.client.reading().waiting == len(asking))
            clock.now += 1.0  # longer than any timeout
            await asyncio.sleep(0.2)  # an armed timer would fire by now
            assert not any(asked.done() for asked in asking)
        await server.wait_for_request(2)
        assert client_rig.client.reading().waiting == 6
        go.set()
        answers = await asyncio.gather(*asking)
    assert {answer.text for answer in answers} == {"a b c"}
    assert server.most_active == 2
    assert {answer.ms for answer in answers} == {0}


async def test_retries_do_not_exceed_the_timeout_of_the_job(
    server: ModelServer, client_rig: ClientRig
) -> None:
    job = FakeJob()
    job.remaining_s = 0.05
    await server.stop()
    with pytest.raises(NotNow):
        await client_rig.ask(job=job)
    assert server.paths.count("/v1/chat/completions") == 0


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
    assert watch.left_s == 56
    assert watch.timeout_error() is None
    watch.mark_token()
    now[0] += 3
    assert (watch.left_s, watch.first_token_s) == (0, 4)
    assert isinstance(watch.timeout_error(), IdleTimeout)
    now[0] += 60
    assert isinstance(watch.timeout_error(), TotalTimeout)
