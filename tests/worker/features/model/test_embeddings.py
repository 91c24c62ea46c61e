"""Embeddings from a model server: in order, complete and numeric."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_answers import Answer, body_answer, error_answer, vector_of
from tests.support.model_server import LOADING, ModelServer
from tests.worker.features.model.kit import ClientRig, open_client, settings_for
from worker.errors import NotNow
from worker.features.model.errors import (
    FirstTokenTimeout,
    ModelAnswerInvalid,
    ModelFailed,
    ModelRefused,
    ModelUnavailable,
    NoModel,
)
from worker.features.model.types import Usage


async def test_one_vector_a_text_in_their_order(server: ModelServer, client_rig: ClientRig) -> None:
    texts = ["one", "two words", "three"]
    vectors, usage = await client_rig.client.embeddings(texts)
    assert vectors == [vector_of(text) for text in texts], "the server sends them backwards"
    assert usage == Usage(4)
    assert server.requests[0].body == {
        "input": texts,
        "encoding_format": "float",
        "model": "scripted-1",
    }


async def test_no_texts_no_request(server: ModelServer, client_rig: ClientRig) -> None:
    assert await client_rig.client.embeddings([]) == ([], Usage())
    assert not server.requests


async def test_another_model_for_vectors(server: ModelServer, client_rig: ClientRig) -> None:
    await client_rig.client.embeddings(["a"], model="embedder")
    assert server.requests[0].body["model"] == "embedder"


def data(*vectors: Any, **more: Any) -> Answer:
    rows = [{"index": n, "embedding": v, **more} for n, v in enumerate(vectors)]
    return body_answer({"data": rows})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(body_answer(b"<html>"), "invalid JSON", id="no JSON"),
        pytest.param(body_answer([]), "no list", id="list"),
        pytest.param(body_answer({"data": {}}), "no list", id="data"),
        pytest.param(body_answer({"data": [1, 2]}), "no list", id="rows"),
        pytest.param(data([1.0]), "1 vector for 2 texts", id="too few"),
        pytest.param(data([1.0], [1.0], [1.0]), "3 vectors for 2", id="too many"),
        pytest.param(data([1.0], [2.0], index=0), "wrong indexes", id="numbers"),
        pytest.param(data([1.0], []), "empty", id="empty"),
        pytest.param(data([1.0], None), "empty", id="none"),
        pytest.param(data([1.0], [1.0, 2.0]), "several lengths", id="lengths"),
        pytest.param(data([[1.0]], [[1.0]]), "--pooling mean", id="one for each token"),
        pytest.param(data(["a"], ["b"]), "numbers", id="texts"),
        pytest.param(data([1.0], [1e999]), "no JSON|numbers", id="infinite"),
    ],
)
async def test_invalid_vectors_are_rejected(
    server: ModelServer, client_rig: ClientRig, answer: Answer, words: str
) -> None:
    server.embeddings = lambda body: answer
    with pytest.raises(ModelAnswerInvalid, match=words):
        await client_rig.client.embeddings(["a", "b"])


async def test_temporary_failures_are_retried(server: ModelServer, client_rig: ClientRig) -> None:
    answers = [error_answer(500), error_answer(503, "busy"), data([1.0])]
    server.embeddings = lambda body: answers.pop(0)
    assert (await client_rig.client.embeddings(["a"]))[0] == [[1.0]]


async def test_permanent_failures_are_not_retried(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.embeddings = lambda body: error_answer(501, "Start it with `--embeddings`")
    with pytest.raises(ModelRefused, match="Start it with `--embeddings`"):
        await client_rig.client.embeddings(["a"])
    server.embeddings = lambda body: body_answer({"error": {"code": 400, "message": "too long"}})
    with pytest.raises(ModelRefused, match="too long"):
        await client_rig.client.embeddings(["a"])
    server.embeddings = lambda body: error_answer(500, "oops")
    with pytest.raises(ModelFailed, match="oops"):
        await client_rig.client.embeddings(["a"])


async def test_down_loading_and_absent(
    server: ModelServer, client_rig: ClientRig, tmp_path: Path
) -> None:
    server.state = LOADING
    with pytest.raises(ModelUnavailable, match="Loading"):
        await client_rig.client.embeddings(["a"])
    await server.stop()
    with pytest.raises(NotNow):
        await client_rig.client.embeddings(["a"])
    async with open_client(settings_for(None, tmp_path)) as without:
        with pytest.raises(NoModel):
            await without.client.embeddings(["a"])


async def test_slow(server: ModelServer, tmp_path: Path) -> None:
    server.embeddings = lambda body: Answer(body=b"{}", before=60.0)
    settings = settings_for(server, tmp_path, model_first_token_timeout_s=0.1)
    async with open_client(settings) as client_rig:
        with pytest.raises(FirstTokenTimeout, match=r"0\.1 s.*MODEL_FIRST_TOKEN_TIMEOUT_S"):
            await client_rig.client.embeddings(["a"])
        await asyncio.wait_for(server.requests[0].over.wait(), 10)
        assert server.requests[0].hung_up


async def test_a_canceled_task_closes_the_connection(
    server: ModelServer, client_rig: ClientRig
) -> None:
    server.embeddings = lambda body: Answer(body=b"{}", before=60.0)
    asking = asyncio.ensure_future(client_rig.client.embeddings(["a"]))
    seen = await server.wait_for_request(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(seen.over.wait(), 10)
    assert (seen.hung_up, client_rig.client.reading().busy) == (True, 0)


async def test_vectors_take_slots_too(server: ModelServer, client_rig: ClientRig) -> None:
    server.embeddings = lambda body: Answer(body=b'{"data":[{"embedding":[1]}]}', before=0.02)
    await asyncio.gather(*(client_rig.client.embeddings(["a"]) for _ in range(8)))
    assert server.most_active == 2
