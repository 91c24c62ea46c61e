"""What becomes of a request that fails: asked again, put off, counted, or refused for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.contracts.workers import ModelState
from common.errors import SettingsError
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from tests.conftest import eventually
from tests.support.model_answers import Answer, Cut, body_answer, error_answer, text_answer, tokens
from tests.support.model_server import LOADING, ModelServer
from tests.worker.features.model.kit import Box, Notes, box_of, settings_for
from worker.errors import JobError, NotNow, TransientError
from worker.features.http_errors import parse_retry_after
from worker.features.model.errors import (
    ModelBroken,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
    NoModel,
)
from worker.features.model.requests import RETRY_DELAYS_S
from worker.features.model.wire.http import MOST_RETRY_AFTER_S


async def test_without_a_model_the_error_names_both_ways_to_get_one(tmp_path: Path) -> None:
    async with box_of(settings_for(None, tmp_path)) as box:
        assert box.client.state is ModelState.ABSENT
        assert box.limits.told == [(None, "")]
        with pytest.raises(NoModel, match=r"MODEL_URL.*`sluice model serve`") as caught:
            await box.ask()
        assert (caught.value.kind, caught.value.permanent) == ("no_model", True)


@pytest.mark.parametrize(
    "hiccup",
    [
        pytest.param(error_answer(500, "slot lost"), id="500"),
        pytest.param(error_answer(502), id="502"),
        pytest.param(error_answer(503, "busy"), id="503"),
        pytest.param(error_answer(504), id="504"),
        pytest.param(error_answer(429, headers={"Retry-After": "0"}), id="429"),
        pytest.param(Answer([Cut()]), id="closed"),
        pytest.param(Answer([Cut(reset=True)]), id="reset"),
        pytest.param(Answer([], finish=None, done=False), id="ended at once"),
        pytest.param(
            Answer([b'data: {"error":{"code":500,"message":"oops"}}\n\n']), id="error in stream"
        ),
        pytest.param(Answer([b'error: {"code":500,"message":"oops"}\n\n']), id="old llama-server"),
        pytest.param(body_answer({"error": {"code": 503, "message": "busy"}}), id="error as 200"),
    ],
)
async def test_what_may_pass_is_asked_again(server: ModelServer, box: Box, hiccup: Answer) -> None:
    server.add_answers(hiccup)
    server.add_text("hello there")
    notes = Notes()
    answer = await box.ask(sink=notes)
    assert answer.text == notes.said == "hello there"
    assert len(server.requests) == 2
    assert box.client.state is ModelState.READY


async def test_a_connection_that_was_closed_while_idle(server: ModelServer, box: Box) -> None:
    await box.ask()
    port = server.port
    await server.stop()
    await server.start()
    assert server.port == port
    assert (await box.ask("count to 2")).text == "1 2"


async def test_a_server_that_asks_for_patience_gets_it(server: ModelServer, box: Box) -> None:
    server.add_answers(error_answer(429, "slow down", headers={"Retry-After": "0.3"}))
    server.add_text("now")
    answer = await box.ask()
    assert answer.text == "now"
    assert answer.ms >= 300


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_stays_busy_keeps_the_job_waiting(
    server: ModelServer, box: Box, status: int
) -> None:
    server.set_default(error_answer(status, "too many requests", headers={"Retry-After": "90"}))
    with pytest.raises(ModelUnavailable, match="too many requests") as caught:
        await box.ask()
    assert caught.value.retry_after_s == 90
    assert isinstance(caught.value, NotNow)
    assert len(server.requests) == 1, "so long a wait is not spent in a slot"


async def test_a_server_that_stays_busy_is_left_alone(server: ModelServer, box: Box) -> None:
    server.set_default(error_answer(429, "quota exceeded", headers={"Retry-After": "90"}))
    for _ in range(3):
        with pytest.raises(ModelUnavailable):
            await box.ask()
    assert box.client.state is ModelState.DOWN


async def test_a_server_that_fails_at_this_request(server: ModelServer, box: Box) -> None:
    server.set_default(error_answer(500, "grammar exploded"))
    with pytest.raises(ModelFailed, match="grammar exploded") as caught:
        await box.ask()
    assert isinstance(caught.value, TransientError)
    assert not isinstance(caught.value, NotNow)
    assert caught.value.kind == "model_failed"
    assert len(server.requests) == 1 + len(RETRY_DELAYS_S)


async def test_a_server_that_is_gone(server: ModelServer, box: Box) -> None:
    await server.stop()
    with pytest.raises(ModelUnavailable, match="refused") as caught:
        await box.ask()
    assert isinstance(caught.value, NotNow)
    assert caught.value.kind == "model_unavailable"
    assert caught.value.retry_after_s
    assert box.limits.places == 0
    # From now on nobody has to find out for himself.
    began = asyncio.get_running_loop().time()
    with pytest.raises(ModelUnavailable):
        await box.ask()
    assert asyncio.get_running_loop().time() - began < 0.05


async def test_a_gateway_before_a_server_that_is_gone(server: ModelServer, box: Box) -> None:
    """It answers 502 to everything, probes too: nobody's fault."""
    server.state = "broken"
    with pytest.raises(ModelUnavailable, match="out of order"):
        await box.ask()
    assert box.client.state is ModelState.DOWN


async def test_a_request_that_kills_the_server_is_not_repeated_for_ever(
    server: ModelServer, box: Box
) -> None:
    """The first try breaks off, the next finds nobody: this attempt counts."""
    gate = asyncio.Event()
    server.add_answers(Answer([gate, Cut(reset=True)]))
    asking = asyncio.ensure_future(box.ask())
    await server.wait_for_request(1)
    server._server.close()  # type: ignore[union-attr]
    gate.set()
    with pytest.raises(ModelFailed) as caught:
        await asking
    assert not isinstance(caught.value, NotNow)
    assert box.limits.places == 0


async def test_loading_is_no_failure(server: ModelServer, box: Box) -> None:
    server.state = LOADING
    with pytest.raises(ModelUnavailable, match="Loading model"):
        await box.ask()
    assert len(server.requests) == 1
    assert box.client.state is ModelState.LOADING
    server.state = "ready"
    await box.is_in(ModelState.READY)
    assert (await box.ask("count to 2")).text == "1 2"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error_answer(400, "Expected 'messages' to be an array"), "400: Expected 'messages'"),
        (error_answer(401, "Invalid API Key"), "401.*MODEL_API_KEY"),
        (error_answer(403), "MODEL_API_KEY"),
        (error_answer(404, "model 'x' not found"), "model 'x' not found.*MODEL_NAME"),
        (error_answer(413), "413"),
        (error_answer(422, "value is not a valid list"), "422"),
        (error_answer(501, "This server does not support tools"), "does not support tools"),
        (body_answer({"detail": "no such thing"}, 400), "no such thing"),
        (body_answer({"error": "model is required"}, 400), "model is required"),
        (body_answer(b"<html>\nno\n</html>", 400), "<html> no </html>"),
        (body_answer(b"", 400), "nothing"),
        (body_answer(b"x" * 100_000, 400), "a long text"),
        (
            body_answer(b"", 307, headers={"Location": "https://a:b@else/v1"}),
            "https://a:.*@else/v1",
        ),
        (
            Answer([b'data: {"error":{"code":400,"message":"exceeds the context size"}}\n\n']),
            "exceeds the context size",
        ),
    ],
)
async def test_what_will_not_pass_is_refused_with_the_servers_own_words(
    server: ModelServer, box: Box, answer: Answer, words: str
) -> None:
    server.add_text("warm up")  # proves that it takes our optional members
    await box.ask()
    server.add_answers(answer)
    with pytest.raises(ModelRefused, match=words) as caught:
        await box.ask()
    assert (caught.value.kind, caught.value.permanent) == ("model_refused", True)
    assert "a:b@" not in str(caught.value)
    assert len(server.requests) == 2
    assert box.client.state is ModelState.READY


async def test_a_first_request_that_is_refused_is_tried_without_our_members(
    server: ModelServer, box: Box
) -> None:
    server.set_default(error_answer(400, "too long"))
    with pytest.raises(ModelRefused, match="too long"):
        await box.ask()
    server.set_default(None)
    await box.ask("count to 1")
    with_members = ["stream_options" in seen.body for seen in server.requests]
    assert with_members == [True, False, True]


async def test_the_key_goes_along_and_is_never_told(server: ModelServer, tmp_path: Path) -> None:
    server.api_key = "sk-very-secret"
    settings = settings_for(server, tmp_path, model_api_key="sk-very-secret")
    async with box_of(settings) as box:
        assert (await box.ask("count to 1")).text == "1"
        server.add_answers(
            error_answer(400, "bad key sk-very-secret, sent as Bearer sk-very-secret")
        )
        with pytest.raises(ModelRefused) as caught:
            await box.ask()
        assert "very-secret" not in str(caught.value)
        assert "very-secret" not in repr(box.client.reading())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://no-such-host.invalid", "no-such-host.invalid"),
        ("http://127.0.0.1:1", "Connection refused"),
    ],
)
async def test_a_server_that_is_not_there(tmp_path: Path, url: str, words: str) -> None:
    async with box_of(settings_for(None, tmp_path, model_url=url)) as box:
        assert box.limits.places == 0
        with pytest.raises(ModelUnavailable, match=words):
            await box.ask()


async def test_a_url_that_nobody_can_ask(tmp_path: Path) -> None:
    url = "http://x" + "y" * 70 + ".example:99999"
    with pytest.raises(SettingsError, match="MODEL_URL"):
        load_settings(WorkerSettings, model_url=url)
    url = "http://a\u2024b.example"
    async with box_of(settings_for(None, tmp_path, model_url=url)) as box:
        with pytest.raises(JobError, match=r"MODEL_URL|a.b\.example"):
            await box.ask()


async def test_a_server_that_does_not_speak_http(tmp_path: Path) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await reader.read(100)
        writer.close()

    other = await asyncio.start_server(say, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    async with box_of(settings_for(None, tmp_path, model_url=f"http://127.0.0.1:{port}")) as box:
        assert box.client.state is ModelState.DOWN
        with pytest.raises(ModelUnavailable):
            await box.ask()
    other.close()
    await other.wait_closed()


# -- in the middle of an answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([Cut()], id="closed"),
        pytest.param([Cut(reset=True)], id="reset"),
        pytest.param([b'data: {"error":{"code":500,"message":"oops"}}\n\n'], id="error"),
        pytest.param([], id="no end"),
    ],
)
async def test_an_answer_that_breaks_off_is_not_begun_again(
    server: ModelServer, box: Box, end: list[Any]
) -> None:
    server.add_answers(Answer([*tokens("one two"), *end], finish=None, done=False))
    notes = Notes()
    with pytest.raises(ModelBroken, match="after 2 pieces") as caught:
        await box.ask(sink=notes)
    error = caught.value
    assert (error.kind, error.permanent) == ("model_stream_broken", False)
    assert not isinstance(error, TransientError)
    assert notes.said == "one two"
    assert len(server.requests) == 1


async def test_thoughts_and_tool_calls_are_a_beginning_too(server: ModelServer, box: Box) -> None:
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}
    for step in ({"reasoning_content": "hm"}, call):
        server.add_answers(Answer([step, Cut()]))
        with pytest.raises(ModelBroken):
            await box.ask()


async def test_a_sink_that_fails_closes_the_stream(server: ModelServer, box: Box) -> None:
    class Lost(Exception):
        pass

    class Bad(Notes):
        async def text(self, delta: str) -> None:
            raise Lost

    server.add_answers(text_answer("word " * 100, 0.05))
    with pytest.raises(Lost):
        await box.ask(sink=Bad())
    await asyncio.wait_for(server.requests[0].over.wait(), 10)
    assert server.requests[0].hung_up
    assert box.client.reading().busy == 0


# -- the breaker -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: error_answer(500, "oops"), id="500"),
        pytest.param(lambda: Answer([*tokens("a"), Cut()]), id="breaks off"),
        pytest.param(lambda: body_answer(b"<html>"), id="garbage"),
    ],
)
async def test_a_server_that_fails_at_everything_is_left_alone_for_a_while(
    server: ModelServer, box: Box, answer: Callable[[], Answer]
) -> None:
    server.set_default(answer())
    for _ in range(3):
        with pytest.raises(JobError):
            await box.ask()
    assert box.client.state is ModelState.DOWN
    assert box.limits.places == 0
    assert "one after the other" in box.limits.told[-1][1]
    asked = len(server.requests)
    with pytest.raises(ModelUnavailable):
        await box.ask()
    assert len(server.requests) == asked
    # Then one may try.
    server.set_default(None)
    await eventually(lambda: box.limits.places == 1)
    assert (await box.ask("count to 1")).text == "1"
    assert box.limits.places == 2
    assert box.client.reading().reason == ""


async def test_refusals_and_long_answers_are_no_failures(server: ModelServer, box: Box) -> None:
    server.set_default(replace(error_answer(404, "no such model")))
    for _ in range(5):
        with pytest.raises(ModelRefused):
            await box.ask()
    assert box.client.state is ModelState.READY


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("1e9", MOST_RETRY_AFTER_S),
        ("nan", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, MOST_RETRY_AFTER_S) == seconds
