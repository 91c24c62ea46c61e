"""`GET /v1/models`, requests that name a model, and the OpenAPI document of these routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.features.openai.chat.request import EXAMPLE_CHAT, ChatRequest
from gateway.features.openai.chat.response import ChatCompletion
from gateway.features.openai.embeddings import EXAMPLE_EMBEDDINGS, EmbeddingsRequest
from gateway.features.openai.models import ModelCatalog
from gateway.http.error_formats import OpenAIErrorView
from gateway.http.problems import Problem
from tests.support.gateway.harness import Gateway
from tests.support.gateway.openai import CHAT, EMBEDDINGS, HELLO, MODELS, beat, error_in, send, work

pytestmark = pytest.mark.fakeredis_only


async def test_without_heartbeats_any_model_name_is_accepted(gateway: Gateway) -> None:
    answer = await gateway.client.get(MODELS)
    assert (answer.status, answer.json()) == (200, {"object": "list", "data": []})
    error_in(await gateway.client.get(f"{MODELS}/x"), 404, "model_not_found")
    # Then any name is accepted.
    request = await work(gateway, {**HELLO, "model": "gpt-9"})
    assert (await request.payload())["model"] == "gpt-9"
    await request.finish(model="")
    assert (await request.answer()).json()["model"] == "gpt-9"


async def test_models_of_heartbeats_are_listed(gateway: Gateway) -> None:
    await beat(gateway, "w1", name="tiny", embedder="minilm")
    await beat(gateway, "w2", name="tiny")
    await beat(gateway, "w3", name="org/large:q4")
    await beat(gateway, "w4")
    await beat(gateway, "w5", name="both", embedder="both")
    answer = await gateway.client.get(MODELS)
    assert answer.json()["data"] == [
        {
            "id": name,
            "object": "model",
            "created": 1760000000,
            "owned_by": "sluice",
            "sluice": {"tasks": tasks},
        }
        for name, tasks in (
            ("both", ["chat", "embed"]),
            ("minilm", ["embed"]),
            ("org/large:q4", ["chat"]),
            ("tiny", ["chat"]),
        )
    ]
    for name in ("tiny", "org/large:q4", "org%2Flarge:q4"):
        one = await gateway.client.get(f"{MODELS}/{name}")
        assert (one.status, one.json()["object"]) == (200, "model")
    for name in ("Tiny", "org", "tiny/"):
        error = error_in(await gateway.client.get(f"{MODELS}/{name}"), 404, "model_not_found")
        assert error["param"] == "model"
    error_in(await gateway.client.send("DELETE", f"{MODELS}/tiny"), 405, "method_not_allowed")


async def test_an_unknown_model_is_rejected(gateway: Gateway) -> None:
    await beat(gateway, name="tiny", embedder="minilm")
    for name in ("gpt-9", "minilm"):
        answer = await send(gateway, {**HELLO, "model": name})
        error = error_in(answer, 404, "model_not_found")
        assert "`tiny`" in error["message"]
        assert error["param"] == "model"
    assert await gateway.redis.xlen(gateway.keys.queue) == 0
    for body in ({**HELLO, "model": "tiny"}, HELLO):
        request = await work(gateway, body)
        await request.finish(model="")
        assert (await request.answer()).json()["model"] == "tiny"


async def test_redis_is_read_once_a_second(gateway: Gateway) -> None:
    now = 0.0
    models = ModelCatalog(lambda: now)
    assert await models.all(gateway.state) == ()
    await beat(gateway, name="tiny")
    now = 0.9
    assert await models.all(gateway.state) == ()
    now = 1.1
    [known] = await models.all(gateway.state)
    assert known.name == "tiny"


async def test_concurrent_requests_share_one_read_and_its_failure(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = 0

    async def away(*_: object) -> list[object]:
        nonlocal request
        request += 1
        await asyncio.sleep(0.01)
        raise ConnectionError("away")

    monkeypatch.setattr("gateway.observability.workers.read_heartbeats", away)
    models = ModelCatalog()
    waiting = [asyncio.create_task(models.all(gateway.state)) for _ in range(20)]
    waiting[0].cancel()  # a canceled request does not affect the others
    first, *others = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert all(isinstance(other, Problem) and other.status == 503 for other in others)
    assert request == 1


MODEL = f"{MODELS}/{{model}}"
JOB_ERRORS = {"400", "403", "404", "413", "415", "422", "429", "499", "500", "502", "503", "504"}
COMMON_ERRORS = {"400", "401", "408", "413", "421", "431", "503"}
OPERATIONS = {
    ("post", CHAT): JOB_ERRORS,
    ("post", EMBEDDINGS): JOB_ERRORS,
    ("get", MODELS): set(),
    ("get", MODEL): {"404"},
}


def test_every_error_is_documented_in_openais_format(document: dict[str, Any]) -> None:
    for (method, path), expected in OPERATIONS.items():
        operation = document["paths"][path][method]
        errors = {status for status in operation["responses"] if status >= "400"}
        assert errors == expected | COMMON_ERRORS
        for status in errors:
            answer = operation["responses"][status]
            assert answer["description"]
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/OpenAIErrorView"}
            assert set(answer["content"]) <= {"application/json", "application/problem+json"}
    content = document["paths"][CHAT]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    assert content["application/json"]["schema"]["$ref"].endswith("/ChatCompletion")
    for path in (CHAT, EMBEDDINGS):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert all("description" in part for part in body["schema"]["properties"].values())
        assert body["schema"]["additionalProperties"] is False
    ChatRequest.model_validate(EXAMPLE_CHAT)
    EmbeddingsRequest.model_validate(EXAMPLE_EMBEDDINGS)


async def test_real_responses_match_their_models(gateway: Gateway) -> None:
    work_item = await work(gateway)
    await work_item.finish()
    ChatCompletion.model_validate_json((await work_item.answer()).body, strict=True)
    OpenAIErrorView.model_validate_json((await send(gateway, {})).body, strict=True)
