"""Failed requests: retried, postponed, counted, or refused permanently."""

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
from tests.worker.features.model.kit import ClientRig, RecordingSink, open_client, settings_for
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


async def test_without_a_model_the_error_names_both_remedies(tmp_path: Path) -> None:
    async with open_client(settings_for(None, tmp_path)) as client_rig:
        assert client_rig.client.state is ModelState.ABSENT
        assert client_rig.limits.history == [(None, "")]
        with pytest.raises(NoModel, match=r"MODEL_URL.*`sluice model serve`") as caught:
            await client_rig.ask()
        assert (caught.value.kind, caught.value.permanent) == ("no_model", True)


@pytest.mark.parametrize(
    "failure",
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
async def test_temporary_failures_are_retried(
    server: ModelServer, client_rig: ClientRig, failure: Answer
) -> None:
    server.add_answers(failure)
    server.add_text("hello there")
    notes = RecordingSink()
    answer = await client_rig.ask(sink=notes)
    assert answer.text == notes.received == "hello there"
    assert len(server.requests) == 2
    assert client_rig.client.state is ModelState.READY


async def test_a_connection_that_was_closed_while_idle(
    server: ModelServer, client_rig: ClientRig
) -> None:
    await client_rig.ask()
    port = server.port
    await server.stop()
    await server.start()
    assert server.port == port
    assert (await client_rig.ask("count to 2")).text == "1 2"


async def test_retry_after_is_respected(server: ModelServer, client_rig: ClientRig) -> None:
    server.add_answers(error_answer(429, "slow down", headers={"Retry-After": "0.3"}))
    server.add_text("now")
    answer = await client_rig.ask()
    assert answer.text == "now"
    assert answer.ms >= 300


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_stays_busy_keeps_the_job_waiting(
    server: ModelServer, client_rig: ClientRig, status: int
) -> None:
    server.set_default(error_answer(status, "too many requests", headers={"Retry-After": "90"}))
    with pytest.raises(ModelUnavailable, match="too many requests") as caught:
        await client_rig.ask()
    assert caught.value.retry_after_s == 90
    assert isinstance(caught.value, NotNow)
    assert len(server.requests) == 1, "so long a wait is not spent in a slot"


async def test_a_server_that_stays_busy_opens_the_circuit(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.set_default(error_answer(429, "quota exceeded", headers={"Retry-After": "90"}))
    for _ in range(3):
        with pytest.raises(ModelUnavailable):
            await client_rig.ask()
    assert client_rig.client.state is ModelState.DOWN


async def test_a_server_that_fails_at_this_request(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.set_default(error_answer(500, "grammar exploded"))
    with pytest.raises(ModelFailed, match="grammar exploded") as caught:
        await client_rig.ask()
    assert isinstance(caught.value, TransientError)
    assert not isinstance(caught.value, NotNow)
    assert caught.value.kind == "model_failed"
    assert len(server.requests) == 1 + len(RETRY_DELAYS_S)


async def test_a_server_that_is_gone(server: ModelServer, client_rig: ClientRig) -> None:
    await server.stop()
    with pytest.raises(ModelUnavailable, match="refused") as caught:
        await client_rig.ask()
    assert isinstance(caught.value, NotNow)
    assert caught.value.kind == "model_unavailable"
    assert caught.value.retry_after_s
    assert client_rig.limits.slots == 0
    # Further requests fail at once.
    began = asyncio.get_running_loop().time()
    with pytest.raises(ModelUnavailable):
        await client_rig.ask()
    assert asyncio.get_running_loop().time() - began < 0.05


async def test_a_gateway_before_a_server_that_is_gone(
    server: ModelServer, client_rig: ClientRig
) -> None:
    """It answers 502 to everything, including probes; not the fault of the request."""
    server.state = "broken"
    with pytest.raises(ModelUnavailable, match="out of order"):
        await client_rig.ask()
    assert client_rig.client.state is ModelState.DOWN


async def test_a_request_that_crashes_the_server_costs_attempts(
    server: ModelServer, client_rig: ClientRig
) -> None:
    """The first try breaks off, the next is refused: this attempt counts."""
    gate = asyncio.Event()
    server.add_answers(Answer([gate, Cut(reset=True)]))
    asking = asyncio.ensure_future(client_rig.ask())
    await server.wait_for_request(1)
    server._server.close()  # type: ignore[union-attr]
    gate.set()
    with pytest.raises(ModelFailed) as caught:
        await asking
    assert not isinstance(caught.value, NotNow)
    assert client_rig.limits.slots == 0


async def test_loading_is_no_failure(server: ModelServer, client_rig: ClientRig) -> None:
    server.state = LOADING
    with pytest.raises(ModelUnavailable, match="Loading model"):
        await client_rig.ask()
    assert len(server.requests) == 1
    assert client_rig.client.state is ModelState.LOADING
    server.state = "ready"
    await client_rig.is_in(ModelState.READY)
    assert (await client_rig.ask("count to 2")).text == "1 2"


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
async def test_permanent_failures_have_the_servers_message(
    server: ModelServer, client_rig: ClientRig, answer: Answer, words: str
) -> None:
    server.add_text("warm up")  # proves that it accepts the optional members
    await client_rig.ask()
    server.add_answers(answer)
    with pytest.raises(ModelRefused, match=words) as caught:
        await client_rig.ask()
    assert (caught.value.kind, caught.value.permanent) == ("model_refused", True)
    assert "a:b@" not in str(caught.value)
    assert len(server.requests) == 2
    assert client_rig.client.state is ModelState.READY


async def test_a_refused_first_request_is_tried_without_extras(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.set_default(error_answer(400, "too long"))
    with pytest.raises(ModelRefused, match="too long"):
        await client_rig.ask()
    server.set_default(None)
    await client_rig.ask("count to 1")
    with_members = ["stream_options" in seen.body for seen in server.requests]
    assert with_members == [True, False, True]


async def test_the_key_is_sent_and_never_shown(server: ModelServer, tmp_path: Path) -> None:
    server.api_key = "sk-very-secret"
    settings = settings_for(server, tmp_path, model_api_key="sk-very-secret")
    async with open_client(settings) as client_rig:
        assert (await client_rig.ask("count to 1")).text == "1"
        server.add_answers(
            error_answer(400, "bad key sk-very-secret, sent as Bearer sk-very-secret")
        )
        with pytest.raises(ModelRefused) as caught:
            await client_rig.ask()
        assert "very-secret" not in str(caught.value)
        assert "very-secret" not in repr(client_rig.client.reading())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://no-such-host.invalid", "no-such-host.invalid"),
        ("http://127.0.0.1:1", "Connection refused"),
    ],
)
async def test_a_server_that_is_not_there(tmp_path: Path, url: str, words: str) -> None:
    async with open_client(settings_for(None, tmp_path, model_url=url)) as client_rig:
        assert client_rig.limits.slots == 0
        with pytest.raises(ModelUnavailable, match=words):
            await client_rig.ask()


async def test_an_unusable_url(tmp_path: Path) -> None:
    url = "http://x" + "y" * 70 + ".example:99999"
    with pytest.raises(SettingsError, match="MODEL_URL"):
        load_settings(WorkerSettings, model_url=url)
    url = "http://a\u2024b.example"
    async with open_client(settings_for(None, tmp_path, model_url=url)) as client_rig:
        with pytest.raises(JobError, match=r"MODEL_URL|a.b\.example"):
            await client_rig.ask()


async def test_a_server_that_does_not_speak_http(tmp_path: Path) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await reader.read(100)
        writer.close()

    other = await asyncio.start_server(say, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    async with open_client(
        settings_for(None, tmp_path, model_url=f"http://127.0.0.1:{port}")
    ) as client_rig:
        assert client_rig.client.state is ModelState.DOWN
        with pytest.raises(ModelUnavailable):
            await client_rig.ask()
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
async def test_an_answer_that_breaks_off_is_not_retried(
    server: ModelServer, client_rig: ClientRig, end: list[Any]
) -> None:
    server.add_answers(Answer([*tokens("one two"), *end], finish=None, done=False))
    notes = RecordingSink()
    with pytest.raises(ModelBroken, match="after 2 pieces") as caught:
        await client_rig.ask(sink=notes)
    error = caught.value
    assert (error.kind, error.permanent) == ("model_stream_broken", False)
    assert not isinstance(error, TransientError)
    assert notes.received == "one two"
    assert len(server.requests) == 1


async def test_reasoning_and_tool_calls_count_as_started(
    server: ModelServer, client_rig: ClientRig
) -> None:
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}
    for step in ({"reasoning_content": "hm"}, call):
        server.add_answers(Answer([step, Cut()]))
        with pytest.raises(ModelBroken):
            await client_rig.ask()


async def test_a_sink_that_fails_closes_the_stream(
    server: ModelServer, client_rig: ClientRig
) -> None:
    class Lost(Exception):
        pass

    class Bad(RecordingSink):
        async def text(self, delta: str) -> None:
            raise Lost

    server.add_answers(text_answer("word " * 100, 0.05))
    with pytest.raises(Lost):
        await client_rig.ask(sink=Bad())
    await asyncio.wait_for(server.requests[0].over.wait(), 10)
    assert server.requests[0].hung_up
    assert client_rig.client.reading().busy == 0


# -- the breaker -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: error_answer(500, "oops"), id="500"),
        pytest.param(lambda: Answer([*tokens("a"), Cut()]), id="breaks off"),
        pytest.param(lambda: body_answer(b"<html>"), id="garbage"),
    ],
)
async def test_repeated_failures_open_the_circuit(
    server: ModelServer, client_rig: ClientRig, answer: Callable[[], Answer]
) -> None:
    server.set_default(answer())
    for _ in range(3):
        with pytest.raises(JobError):
            await client_rig.ask()
    assert client_rig.client.state is ModelState.DOWN
    assert client_rig.limits.slots == 0
    assert "keep failing" in client_rig.limits.history[-1][1]
    asked = len(server.requests)
    with pytest.raises(ModelUnavailable):
        await client_rig.ask()
    assert len(server.requests) == asked
    # Then one trial request passes.
    server.set_default(None)
    await eventually(lambda: client_rig.limits.slots == 1)
    assert (await client_rig.ask("count to 1")).text == "1"
    assert client_rig.limits.slots == 2
    assert client_rig.client.reading().reason == ""


async def test_refusals_and_long_answers_are_no_failures(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.set_default(replace(error_answer(404, "no such model")))
    for _ in range(5):
        with pytest.raises(ModelRefused):
            await client_rig.ask()
    assert client_rig.client.state is ModelState.READY


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
