"""The OpenAPI document of the OpenAI API, and that responses match it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.features.openai.chat.request import EXAMPLE_CHAT, ChatRequest
from gateway.features.openai.chat.response import ChatCompletion
from gateway.features.openai.embeddings import EXAMPLE_EMBEDDINGS, EmbeddingsRequest
from gateway.http.error_formats import OpenAIErrorView
from tests.gateway.conftest import Gateway
from tests.gateway.features.openai.kit import CHAT, EMBEDDINGS, MODELS, begin, error_in, send, work

MODEL = f"{MODELS}/{{model}}"
JOB_ERRORS = {"400", "403", "404", "413", "415", "422", "429", "499", "500", "502", "503", "504"}
COMMON_ERRORS = {"400", "401", "408", "413", "421", "431", "503"}
OPERATIONS = {
    ("post", CHAT): JOB_ERRORS,
    ("post", EMBEDDINGS): JOB_ERRORS,
    ("get", MODELS): set(),
    ("get", MODEL): {"404"},
}


@pytest.fixture
def document(fake_gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = fake_gateway.app.openapi()
    return found


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_error_is_documented_in_openais_format(
    document: dict[str, Any], method: str, path: str
) -> None:
    operation = document["paths"][path][method]
    errors = {status for status in operation["responses"] if status >= "400"}
    assert errors == OPERATIONS[method, path] | COMMON_ERRORS
    for status in errors:
        answer = operation["responses"][status]
        assert answer["description"]
        schema = answer["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/OpenAIErrorView"}
        assert set(answer["content"]) <= {"application/json", "application/problem+json"}


def test_a_completion_is_documented_as_json_and_as_a_stream(document: dict[str, Any]) -> None:
    content = document["paths"][CHAT]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    assert content["application/json"]["schema"]["$ref"].endswith("/ChatCompletion")


def test_the_examples_are_valid() -> None:
    ChatRequest.model_validate(EXAMPLE_CHAT)
    EmbeddingsRequest.model_validate(EXAMPLE_EMBEDDINGS)


def test_every_member_has_a_description(document: dict[str, Any]) -> None:
    for path in (CHAT, EMBEDDINGS):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert all("description" in part for part in body["schema"]["properties"].values())
        assert body["schema"]["additionalProperties"] is False


async def test_real_responses_match_their_models(fake_gateway: Gateway) -> None:
    work_item = await work(fake_gateway)
    await work_item.finish()
    ChatCompletion.model_validate_json((await work_item.answer()).body, strict=True)
    OpenAIErrorView.model_validate_json((await send(fake_gateway, {})).body, strict=True)


async def test_requests_are_counted_by_route(fake_gateway: Gateway) -> None:
    error_in(await fake_gateway.client.get(f"{MODELS}/a/b"), 404, "model_not_found")
    error_in(await begin(fake_gateway, {}).answer(), 400, "missing_required_parameter")
    text = (await fake_gateway.client.get("/metrics")).body.decode()
    assert f'route="{MODEL}"' in text
    assert f'route="{CHAT}"' in text
