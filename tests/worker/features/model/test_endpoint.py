"""Location of the model, and embeddings from its server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sluice.common.errors import SettingsError
from sluice.worker.errors import NotNow
from sluice.worker.features.model.endpoint import RESTART_GRACE_S, EndpointLocator, parse_endpoint
from sluice.worker.features.model.errors import (
    FirstTokenTimeout,
    ModelAnswerInvalid,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
    NoModel,
    sanitize_text,
)
from sluice.worker.features.model.types import Usage
from tests.support.model.answers import Answer, body_answer, error_answer, vector_of
from tests.support.model.server import LOADING
from tests.support.worker.model import MakeModel, ModelHarness, announce


def test_urls() -> None:
    for url, base in (
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/v1", "http://127.0.0.1:8090"),
        ("http://127.0.0.1:8090/v1/", "http://127.0.0.1:8090"),
        ("https://models.example/llama/v1", "https://models.example/llama"),
        ("https://models.example/llama/", "https://models.example/llama"),
        ("http://[::1]:8090/v1?x=1#y", "http://[::1]:8090"),
        ("http://me:secret@box:11434/v1", "http://box:11434"),
    ):
        endpoint = parse_endpoint(url)
        assert endpoint.base == base
        assert endpoint.url("/health") == f"{base}/health"
        assert endpoint.api("/models") == f"{base}/v1/models"
    for url in ("", "box:8090", "ftp://box", "http://"):
        with pytest.raises(ValueError, match=r"example: http://127\.0\.0\.1:8090"):
            parse_endpoint(url)


def test_credentials_go_with_requests_and_are_never_shown() -> None:
    endpoint = parse_endpoint("http://me:hunter2%21@box/v1")
    assert endpoint.headers == {"Authorization": "Basic bWU6aHVudGVyMiE="}
    assert "hunter2" not in repr(endpoint)
    assert "bWU6" not in repr(endpoint)
    endpoint = parse_endpoint("http://me:hunter2@box", SecretStr("k-123\n"))
    assert endpoint.headers == {"Authorization": "Bearer k-123"}
    assert "k-123" not in repr(endpoint)
    for key in ("two\nlines", "schlüssel", "a\x00b"):
        with pytest.raises(SettingsError, match="EMBED_API_KEY") as caught:
            parse_endpoint("http://box", SecretStr(key), setting="EMBED")
        assert key not in str(caught.value)


def test_server_messages_are_one_line_without_secrets() -> None:
    said = "bad key k-123456789\n\tsent as Bearer k-123456789abc to http://a:b@c/ \x00" + "x" * 3000
    shown = sanitize_text(said, "k-123456789")
    assert "k-123456789" not in shown
    assert "a:b@" not in shown
    assert len(shown) == 501
    assert shown.isprintable()


def found_by(locator: EndpointLocator) -> tuple[str, str] | None:
    """URL and model, or None."""
    found = locator.find()
    return None if found is None else (found.base, found.model)


def test_the_announcement_of_a_served_model(tmp_path: Path) -> None:
    now = [0.0]
    locator = EndpointLocator(None, str(tmp_path), clock=lambda: now[0])
    assert locator.find() is None
    announce(tmp_path, "http://127.0.0.1:1", "small")
    first = locator.find()
    assert found_by(locator) == ("http://127.0.0.1:1", "small")
    assert locator.find() is first
    announce(tmp_path, "http://127.0.0.1:22/v1", "small")
    assert found_by(locator) == ("http://127.0.0.1:22", "small")
    # A restarting server removes its file for a moment.
    (tmp_path / "model.json").unlink()
    assert found_by(locator) == ("http://127.0.0.1:22", "small")
    now[0] += RESTART_GRACE_S - 1
    assert found_by(locator) == ("http://127.0.0.1:22", "small")
    announce(tmp_path, "http://127.0.0.1:3", "small")
    assert found_by(locator) == ("http://127.0.0.1:3", "small")
    (tmp_path / "model.json").unlink()
    assert found_by(locator) == ("http://127.0.0.1:3", "small")
    now[0] += RESTART_GRACE_S
    assert locator.find() is None


def test_settings_override_the_announcement(tmp_path: Path) -> None:
    announce(tmp_path, "http://127.0.0.1:1", "small")
    named = EndpointLocator(None, str(tmp_path), model="big")
    assert found_by(named) == ("http://127.0.0.1:1", "big")
    fixed = EndpointLocator("http://box/v1", str(tmp_path))
    assert found_by(fixed) == ("http://box", "")
    # An invalid announcement is ignored.
    for text in ("", "{", "[]", "{}", '{"url": 3}', '{"url": "x"}', "null"):
        (tmp_path / "model.json").write_text(text)
        locator = EndpointLocator(None, str(tmp_path))
        assert locator.find() is None
    announce(tmp_path, "http://127.0.0.1:1", 3)
    assert found_by(locator) == ("http://127.0.0.1:1", "")


async def test_one_vector_a_text_in_their_order(model: ModelHarness) -> None:
    assert await model.client.embeddings([]) == ([], Usage())
    assert not model.server.requests
    texts = ["one", "two words", "three"]
    vectors, usage = await model.client.embeddings(texts)
    assert vectors == [vector_of(text) for text in texts], "the server sends them backwards"
    assert usage == Usage(4)
    await model.client.embeddings(["a"], model="embedder")
    assert [seen.body for seen in model.server.requests] == [
        {"input": texts, "encoding_format": "float", "model": "scripted-1"},
        {"input": ["a"], "encoding_format": "float", "model": "embedder"},
    ]


def data(*vectors: Any, **more: Any) -> Answer:
    rows = [{"index": n, "embedding": v, **more} for n, v in enumerate(vectors)]
    return body_answer({"data": rows})


INVALID_VECTORS: list[tuple[Answer, str]] = [
    (body_answer(b"<html>"), "invalid JSON"),
    (body_answer([]), "no list"),
    (body_answer({"data": {}}), "no list"),
    (body_answer({"data": [1, 2]}), "no list"),
    (data([1.0]), "1 vector for 2 texts"),
    (data([1.0], [1.0], [1.0]), "3 vectors for 2"),
    (data([1.0], [2.0], index=0), "wrong indexes"),
    (data([1.0], []), "empty"),
    (data([1.0], None), "empty"),
    (data([1.0], [1.0, 2.0]), "several lengths"),
    (data([[1.0]], [[1.0]]), "--pooling mean"),
    (data(["a"], ["b"]), "numbers"),
    (data([1.0], [1e999]), "no JSON|numbers"),
]


async def test_invalid_vectors_are_refused(make_model: MakeModel) -> None:
    model = await make_model(watching=False)
    for answer, words in INVALID_VECTORS:
        model.server.embeddings = lambda body, answer=answer: answer
        with pytest.raises(ModelAnswerInvalid, match=words):
            await model.client.embeddings(["a", "b"])
        model.server.embeddings = None
        await model.client.embeddings(["a"])  # closes the circuit


async def test_down_loading_and_absent(model: ModelHarness, make_model: MakeModel) -> None:
    model.server.state = LOADING
    with pytest.raises(ModelUnavailable, match="Loading"):
        await model.client.embeddings(["a"])
    await model.server.stop()
    with pytest.raises(NotNow):
        await model.client.embeddings(["a"])
    without = await make_model(None)
    with pytest.raises(NoModel):
        await without.client.embeddings(["a"])


async def test_a_slow_or_canceled_request_closes_the_connection(make_model: MakeModel) -> None:
    model = await make_model(model_first_token_timeout_s=0.1)
    model.server.embeddings = lambda body: Answer(body=b"{}", before=60.0)
    with pytest.raises(FirstTokenTimeout, match=r"0\.1 s.*MODEL_FIRST_TOKEN_TIMEOUT_S"):
        await model.client.embeddings(["a"])
    other = await make_model()
    asking = asyncio.ensure_future(other.client.embeddings(["a"]))
    await model.server.wait_for_request(2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    for seen in model.server.requests:
        await asyncio.wait_for(seen.over.wait(), 10)
        assert seen.hung_up
    assert other.client.reading().busy == 0


async def test_vectors_take_slots_too(model: ModelHarness) -> None:
    model.server.embeddings = lambda body: Answer(body=b'{"data":[{"embedding":[1]}]}', before=0.02)
    await asyncio.gather(*(model.client.embeddings(["a"]) for _ in range(8)))
    assert model.server.most_active == 2


async def test_only_temporary_failures_are_retried(model: ModelHarness) -> None:
    answers = [error_answer(500), error_answer(503, "busy"), data([1.0])]
    model.server.embeddings = lambda body: answers.pop(0)
    assert (await model.client.embeddings(["a"]))[0] == [[1.0]]
    for answer, error, words in (
        (error_answer(501, "Start it with `--embeddings`"), ModelRefused, "`--embeddings`"),
        (body_answer({"error": {"code": 400, "message": "too long"}}), ModelRefused, "too long"),
        (error_answer(500, "oops"), ModelFailed, "oops"),
    ):
        model.server.embeddings = lambda body, answer=answer: answer
        with pytest.raises(error, match=words):
            await model.client.embeddings(["a"])
