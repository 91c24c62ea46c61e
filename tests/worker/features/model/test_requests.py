"""Failed requests: retried, postponed, counted, or refused permanently."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sluice.common.aio import cancel
from sluice.common.contracts.workers import ModelState
from sluice.common.errors import SettingsError
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.errors import JobError, NotNow, TransientError
from sluice.worker.features.http_errors import parse_retry_after
from sluice.worker.features.model import availability, circuit
from sluice.worker.features.model.circuit import FAILURE_THRESHOLD
from sluice.worker.features.model.client import ModelClient
from sluice.worker.features.model.errors import (
    ModelBroken,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
    NoModel,
)
from sluice.worker.features.model.requests import RETRY_DELAYS_S
from sluice.worker.features.model.wire.http import MOST_RETRY_AFTER_S
from tests.support.model.answers import Answer, Cut, body_answer, error_answer, text_answer, tokens
from tests.support.model.server import BROKEN, LOADING, READY, ModelServer
from tests.support.model.wire import ReceivedRequest
from tests.support.waiting import eventually
from tests.support.worker.model import (
    MakeModel,
    ModelHarness,
    RecordingSink,
    fake_services,
    settings_for,
)

STREAMED_ERROR = b'data: {"error":{"code":500,"message":"oops"}}\n\n'


async def test_without_a_model_the_error_names_both_remedies(make_model: MakeModel) -> None:
    model = await make_model(None)
    assert model.state is ModelState.ABSENT
    assert model.limits.history == [(None, "")]
    with pytest.raises(NoModel, match=r"MODEL_URL.*`sluice model serve`") as caught:
        await model.ask()
    assert (caught.value.kind, caught.value.permanent) == ("no_model", True)


async def test_temporary_failures_are_retried(model: ModelHarness) -> None:
    for failure in (
        error_answer(500, "slot lost"),
        error_answer(502),
        error_answer(503, "busy"),
        error_answer(504),
        error_answer(429, headers={"Retry-After": "0"}),
        Answer([Cut()]),
        Answer([Cut(reset=True)]),
        Answer([], finish=None, done=False),
        Answer([STREAMED_ERROR]),
        Answer([b'error: {"code":500,"message":"oops"}\n\n']),  # old llama-server
        body_answer({"error": {"code": 503, "message": "busy"}}),
    ):
        model.server.requests.clear()
        model.server.add_answers(failure)
        model.server.add_text("hello there")
        sink = RecordingSink()
        answer = await model.ask(sink=sink)
        assert answer.text == sink.received == "hello there", failure
        assert len(model.server.requests) == 2, failure
        assert model.state is ModelState.READY
    # A connection that was closed while idle.
    port = model.server.port
    await model.server.stop()
    await model.server.start()
    assert model.server.port == port
    assert (await model.ask("count to 2")).text == "1 2"


async def test_retry_after_is_respected(model: ModelHarness) -> None:
    model.server.add_answers(error_answer(429, "slow down", headers={"Retry-After": "0.3"}))
    model.server.add_text("now")
    answer = await model.ask()
    assert answer.text == "now"
    assert answer.ms >= 300


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_stays_busy_opens_the_circuit(model: ModelHarness, status: int) -> None:
    busy = error_answer(status, "too many requests", headers={"Retry-After": "90"})
    model.server.set_default(busy)
    for number in range(1, 4):
        with pytest.raises(ModelUnavailable, match="too many requests") as caught:
            await model.ask()
        assert caught.value.retry_after_s == 90
        assert isinstance(caught.value, NotNow)
        assert len(job_requests(model)) == number, "so long a wait is not spent in a slot"
    assert model.state is ModelState.DOWN


async def test_a_server_that_fails_at_this_request(model: ModelHarness) -> None:
    model.server.set_default(error_answer(500, "grammar exploded"))
    with pytest.raises(ModelFailed, match="grammar exploded") as caught:
        await model.ask()
    assert isinstance(caught.value, TransientError)
    assert not isinstance(caught.value, NotNow)
    assert caught.value.kind == "model_failed"
    assert len(job_requests(model)) == 1 + len(RETRY_DELAYS_S)


async def test_a_server_that_is_gone(model: ModelHarness) -> None:
    await model.server.stop()
    with pytest.raises(ModelUnavailable, match="refused") as caught:
        await model.ask()
    assert isinstance(caught.value, NotNow)
    assert caught.value.kind == "model_unavailable"
    assert caught.value.retry_after_s
    assert model.limits.slots == 0
    # Further requests fail at once.
    began = asyncio.get_running_loop().time()
    with pytest.raises(ModelUnavailable):
        await model.ask()
    assert asyncio.get_running_loop().time() - began < 0.05


async def test_a_gateway_before_a_server_that_is_gone(model: ModelHarness) -> None:
    """It answers 502 to everything, including probes; not the fault of the request."""
    model.server.state = BROKEN
    with pytest.raises(ModelUnavailable, match="out of order"):
        await model.ask()
    assert model.state is ModelState.DOWN


async def test_a_request_that_crashes_the_server_costs_attempts(model: ModelHarness) -> None:
    """The first try breaks off, the next is refused: this attempt counts."""
    gate = asyncio.Event()
    _, asking, _ = await model.begin(Answer([gate, Cut(reset=True)]))
    model.server._server.close()  # type: ignore[union-attr]
    gate.set()
    with pytest.raises(ModelFailed) as caught:
        await asking
    assert not isinstance(caught.value, NotNow)
    assert model.limits.slots == 0


async def test_loading_is_no_failure(model: ModelHarness) -> None:
    model.server.state = LOADING
    with pytest.raises(ModelUnavailable, match="Loading model"):
        await model.ask()
    assert len(model.server.requests) == 1
    assert (model.state, model.limits.slots) == (ModelState.LOADING, 0)
    assert "Loading model" in model.limits.reason
    model.server.state = READY
    await model.is_in(ModelState.READY)
    assert model.limits.slots == 2
    assert (await model.ask("count to 2")).text == "1 2"


REDIRECT = body_answer(b"", 307, headers={"Location": "https://a:b@else/v1"})
TOO_LONG = b'data: {"error":{"code":400,"message":"exceeds the context size"}}\n\n'


REFUSALS: list[tuple[Answer, str]] = [
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
    (REDIRECT, "https://a:.*@else/v1"),
    (Answer([TOO_LONG]), "exceeds the context size"),
]


async def test_permanent_failures_have_the_servers_message(model: ModelHarness) -> None:
    await model.ask()  # proves that it accepts the optional members
    for number, (answer, words) in enumerate(REFUSALS, 2):
        model.server.add_answers(answer)
        with pytest.raises(ModelRefused, match=words) as caught:
            await model.ask()
        assert (caught.value.kind, caught.value.permanent) == ("model_refused", True)
        assert "a:b@" not in str(caught.value)
        assert len(job_requests(model)) == number
        assert model.state is ModelState.READY


async def test_a_refused_first_request_is_tried_without_extras(model: ModelHarness) -> None:
    model.server.set_default(error_answer(400, "too long"))
    with pytest.raises(ModelRefused, match="too long"):
        await model.ask()
    model.server.set_default(None)
    await model.ask("count to 1")
    with_members = ["stream_options" in seen.body for seen in model.server.requests]
    assert with_members == [True, False, True]
    # Refusals do not open the circuit.
    model.server.set_default(error_answer(404, "no such model"))
    for _ in range(5):
        with pytest.raises(ModelRefused):
            await model.ask()
    assert model.state is ModelState.READY


async def test_the_key_is_sent_and_never_shown(make_model: MakeModel) -> None:
    model = await make_model(model_api_key="sk-very-secret")
    model.server.api_key = "sk-very-secret"
    assert (await model.ask("count to 1")).text == "1"
    message = "bad key sk-very-secret, sent as Bearer sk-very-secret"
    model.server.add_answers(error_answer(400, message))
    with pytest.raises(ModelRefused) as caught:
        await model.ask()
    assert "very-secret" not in str(caught.value)
    assert "very-secret" not in repr(model.client.reading())


async def test_unusable_and_unreachable_urls(make_model: MakeModel) -> None:
    for url, words in (
        ("http://no-such-host.invalid", "no-such-host.invalid"),
        ("http://127.0.0.1:1", "Connection refused"),
    ):
        model = await make_model(None, model_url=url)
        assert model.limits.slots == 0
        with pytest.raises(ModelUnavailable, match=words):
            await model.ask()
    url = "http://x" + "y" * 70 + ".example:99999"
    with pytest.raises(SettingsError, match="MODEL_URL"):
        load_settings(WorkerSettings, model_url=url)
    model = await make_model(None, model_url="http://a\u2024b.example")
    with pytest.raises(JobError, match=r"MODEL_URL|a.b\.example"):
        await model.ask()


async def test_a_server_that_does_not_speak_http(make_model: MakeModel) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        await reader.read(100)
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        model = await make_model(None, watching=False, model_url=f"http://127.0.0.1:{port}")
        assert model.state is ModelState.DOWN
        with pytest.raises(ModelUnavailable):
            await model.ask()


BROKEN_ENDS: list[list[Any]] = [[Cut()], [Cut(reset=True)], [STREAMED_ERROR], []]


@pytest.mark.parametrize("end", BROKEN_ENDS, ids=["cut", "reset", "error", "no end"])
async def test_an_answer_that_breaks_is_not_retried(model: ModelHarness, end: list[Any]) -> None:
    model.server.add_answers(Answer([*tokens("one two"), *end], finish=None, done=False))
    sink = RecordingSink()
    with pytest.raises(ModelBroken, match="after 2 pieces") as caught:
        await model.ask(sink=sink)
    error = caught.value
    assert (error.kind, error.permanent) == ("model_stream_broken", False)
    assert not isinstance(error, TransientError)
    assert sink.received == "one two"
    assert len(model.server.requests) == 1


async def test_reasoning_and_tool_calls_count_as_started(model: ModelHarness) -> None:
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}
    for begun in (call, {"reasoning_content": "hm"}):
        model.server.add_answers(Answer([begun, Cut()]))
        with pytest.raises(ModelBroken):
            await model.ask()


async def test_a_sink_that_fails_closes_the_stream(model: ModelHarness) -> None:
    class Lost(Exception):
        pass

    class Bad(RecordingSink):
        async def text(self, delta: str) -> None:
            raise Lost

    model.server.add_answers(text_answer("word " * 100, 0.05))
    with pytest.raises(Lost):
        await model.ask(sink=Bad())
    await asyncio.wait_for(model.server.requests[0].over.wait(), 10)
    assert model.server.requests[0].hung_up
    assert model.client.reading().busy == 0


FAILURES = [error_answer(500, "oops"), Answer([*tokens("a"), Cut()]), body_answer(b"<html>")]


def is_trial(request: ReceivedRequest) -> bool:
    """True for the request that shows whether the server answers again."""
    return request.body.get("max_tokens") == 1


def job_requests(model: ModelHarness) -> list[ReceivedRequest]:
    """The requests without trials: one is sent as soon as the circuit opens."""
    return [each for each in model.server.requests if not is_trial(each)]


async def open_circuit(model: ModelHarness, answer: Answer) -> None:
    """Let requests fail until the circuit opens and a trial request has failed as well."""
    model.server.set_default(answer)
    for _ in range(FAILURE_THRESHOLD):
        with pytest.raises(JobError):
            await model.ask()
    await eventually(lambda: any(map(is_trial, model.server.requests)))
    assert model.limits.slots == 0


@pytest.mark.parametrize("answer", FAILURES, ids=["500", "breaks off", "invalid"])
async def test_a_successful_trial_request_closes_the_circuit(
    model: ModelHarness, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, with all slots, and long before the end of the pause."""
    monkeypatch.setattr(circuit, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(availability, "TRIAL_EVERY_S", 0.05)
    model.client._monitor._breaker.record_success()  # for the changed pause
    await open_circuit(model, answer)
    model.server.set_default(None)
    await eventually(lambda: model.limits.slots == 2)
    assert (await model.ask("count to 1")).text == "1"
    trials = len([each for each in model.server.requests if is_trial(each)])
    await model.ask("count to 1")
    assert len([each for each in model.server.requests if is_trial(each)]) == trials


@pytest.mark.parametrize("status", [200, 400], ids=["answered", "refused"])
async def test_a_trial_that_never_fails_leaves_the_circuit_open(
    model: ModelHarness, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then only requests of jobs fail, and only they show when that is over."""
    monkeypatch.setattr(circuit, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(availability, "TRIAL_EVERY_S", 0.02)
    model.client._monitor._breaker.record_success()
    model.server.add_answers(*[body_answer(b"<html>")] * FAILURE_THRESHOLD)
    model.server.set_default(error_answer(status, "no") if status != 200 else None)
    for _ in range(FAILURE_THRESHOLD):
        with pytest.raises(JobError):
            await model.ask()
    await eventually(lambda: sum(map(is_trial, model.server.requests)) > 3)
    assert (model.state, model.limits.slots) == (ModelState.DOWN, 0)


async def test_an_embedding_server_gets_embeddings_as_trials(
    make_model: MakeModel, server: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(circuit, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(availability, "TRIAL_EVERY_S", 0.05)
    client = ModelClient(settings_for(server, tmp_path), embeddings_only=True)
    await client.start(fake_services())
    watching = asyncio.ensure_future(client.run())
    server.embeddings = lambda body: error_answer(500, "oops")
    for _ in range(FAILURE_THRESHOLD):
        with pytest.raises(JobError):
            await client.embeddings(["a"])
    await eventually(lambda: any(each.body["input"] == ["Hi"] for each in server.requests))
    assert client.state is ModelState.DOWN
    server.embeddings = None
    await eventually(lambda: client.state is ModelState.READY)
    assert {each.path for each in server.requests} == {"/v1/embeddings"}
    await cancel(watching)
    await client.close()


@pytest.mark.parametrize("answer", FAILURES, ids=["500", "breaks off", "invalid"])
async def test_repeated_failures_open_the_circuit(
    model: ModelHarness, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.server.set_default(answer)
    for _ in range(3):
        with pytest.raises(JobError):
            await model.ask()
    assert model.state is ModelState.DOWN
    assert model.limits.slots == 0
    assert "keep failing" in model.limits.reason
    asked = len([each for each in model.server.requests if not is_trial(each)])
    with pytest.raises(ModelUnavailable):
        await model.ask()
    assert len([each for each in model.server.requests if not is_trial(each)]) == asked
    # After the pause the request of one job passes.
    monkeypatch.setattr(availability, "TRIAL_EVERY_S", 60.0)
    model.server.set_default(None)
    await eventually(lambda: model.limits.slots == 1)
    assert (await model.ask("count to 1")).text == "1"
    assert model.limits.slots == 2
    assert model.client.reading().reason == ""


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("", None), ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("1e9", MOST_RETRY_AFTER_S),
     ("nan", None), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, MOST_RETRY_AFTER_S) == seconds
