"""Our direct routes answer as plain FastAPI routes would, and are documented as well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from gateway import problems
from gateway.edge import Edge
from gateway.models import CreateJobRequest, JobAccepted, JobView
from tests.gateway.asgi import Client
from tests.gateway.conftest import CHAT, Gateway
from tests.gateway.test_bad_input import MISFITS

PATHS = {"/v1/jobs": "post", "/v1/jobs/{job_id}": "get", "/v1/jobs/{job_id}/events": "get"}


@pytest.fixture
def twin() -> Client:
    """The same submission, left to FastAPI."""
    app = FastAPI()

    @app.post("/v1/jobs", status_code=202)
    async def create(job: CreateJobRequest) -> JobAccepted:
        return JobAccepted(job_id="x")

    problems.install(app)
    app.add_middleware(Edge, max_body_bytes=1 << 20)
    return Client(app)


@pytest.mark.parametrize("body", [body for body, _ in MISFITS.values()], ids=list(MISFITS))
async def test_invalid_bodies_are_answered_alike(
    fake_gateway: Gateway, twin: Client, body: bytes
) -> None:
    theirs, ours = await twin.post(body), await fake_gateway.client.post(body)
    assert (ours.status, ours.header("content-type")) == (
        theirs.status,
        theirs.header("content-type"),
    )
    left, right = ours.json(), theirs.json()
    assert list(left) == list(right)
    assert (left["code"], left["title"]) == (right["code"], right["title"])
    # pydantic words a fault of the whole body differently under FastAPI.
    faults = [[f for f in side["errors"] if f["pointer"]] for side in (left, right)]
    assert faults[0] == faults[1]
    assert [f["pointer"] for f in left["errors"]] == [f["pointer"] for f in right["errors"]]


@pytest.mark.parametrize("ttl_s", [None, 1, 30 * 24 * 3600])
async def test_valid_bodies_are_taken_alike(
    fake_gateway: Gateway, twin: Client, ttl_s: int | None
) -> None:
    body = {**CHAT, "ttl_s": ttl_s}
    assert (await twin.post(body)).status == (await fake_gateway.client.post(body)).status == 202


@pytest.fixture
def document(fake_gateway: Gateway) -> dict[str, Any]:
    return fake_gateway.app.openapi()


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from nodes(child)


def resolve(document: dict[str, Any], reference: str) -> Any:
    assert reference.startswith("#/"), reference
    value: Any = document
    for part in reference[2:].split("/"):
        value = value[part.replace("~1", "/").replace("~0", "~")]
    return value


async def test_it_is_served(fake_gateway: Gateway, document: dict[str, Any]) -> None:
    answer = await fake_gateway.client.get("/openapi.json")
    assert answer.status == 200
    assert answer.json() == document
    assert (await fake_gateway.client.get("/docs")).status == 200


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    references = [node["$ref"] for node in nodes(document) if isinstance(node.get("$ref"), str)]
    assert references
    for reference in references:
        assert resolve(document, reference)


def test_every_path_is_there(document: dict[str, Any]) -> None:
    assert set(PATHS) <= set(document["paths"])
    assert {"/healthz", "/readyz"} <= set(document["paths"])
    for path, method in PATHS.items():
        operation = document["paths"][path][method]
        assert operation["summary"]
        assert operation["description"]


def parameters(document: dict[str, Any], path: str) -> dict[str, dict[str, Any]]:
    listed = document["paths"][path][PATHS[path]].get("parameters", [])
    named = {parameter["name"]: parameter for parameter in listed}
    assert len(named) == len(listed), "a parameter is documented twice"
    return named


def test_parameters(document: dict[str, Any]) -> None:
    assert set(parameters(document, "/v1/jobs")) == {"Idempotency-Key", "Prefer"}
    one = parameters(document, "/v1/jobs/{job_id}")
    assert set(one) == {"job_id", "Prefer", "If-None-Match"}
    assert one["job_id"]["required"] is True
    events = parameters(document, "/v1/jobs/{job_id}/events")
    assert set(events) == {"job_id", "Last-Event-ID", "last_event_id"}
    for path in PATHS:
        for parameter in parameters(document, path).values():
            assert parameter["description"]
            assert "schema" in parameter


def test_the_request_has_a_schema_and_an_example(document: dict[str, Any]) -> None:
    media = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    CreateJobRequest.model_validate(media["example"])
    schema = media["schema"]
    if "$ref" in schema:
        schema = resolve(document, schema["$ref"])
    assert set(schema["properties"]) == {"task", "payload", "ttl_s"}
    assert schema["required"] == ["task", "payload"]


@pytest.mark.parametrize(
    ("path", "status", "model"),
    [("/v1/jobs", "202", JobAccepted), ("/v1/jobs/{job_id}", "200", JobView)],
)
def test_the_answers_have_schemas(
    document: dict[str, Any], path: str, status: str, model: type[BaseModel]
) -> None:
    answer = document["paths"][path][PATHS[path]]["responses"][status]
    schema = resolve(document, answer["content"]["application/json"]["schema"]["$ref"])
    assert set(schema["properties"]) == set(model.model_fields)
    examples = [schema["properties"][name] for name in ("job_id",)]
    assert all("examples" in example for example in examples)


EXPECTED = {
    "/v1/jobs": {"400", "413", "415", "422", "429", "503"},
    "/v1/jobs/{job_id}": {"404", "503"},
    "/v1/jobs/{job_id}/events": {"400", "404", "406", "503"},
}


@pytest.mark.parametrize("path", PATHS)
def test_the_problems_are_documented(document: dict[str, Any], path: str) -> None:
    responses = document["paths"][path][PATHS[path]]["responses"]
    errors = {status for status in responses if status >= "400"}
    assert errors == EXPECTED[path]
    for status in errors:
        assert responses[status]["description"]


@pytest.mark.parametrize("path", [*PATHS, "/readyz"])
def test_problems_have_their_own_media_type(document: dict[str, Any], path: str) -> None:
    """The schema belongs to application/problem+json; errors never come as application/json."""
    method = PATHS.get(path, "get")
    for status, response in document["paths"][path][method]["responses"].items():
        if status >= "400":
            [(media_type, media)] = response["content"].items()
            assert media_type == "application/problem+json"
            assert media["schema"]["$ref"].endswith("/ProblemView")


def test_event_streams_are_documented(document: dict[str, Any]) -> None:
    responses = document["paths"]["/v1/jobs/{job_id}/events"]["get"]["responses"]
    assert {"text/event-stream", "application/x-ndjson"} <= set(responses["200"]["content"])
    assert "application/json" not in responses["200"]["content"]
    assert "204" in responses


async def test_a_real_problem_fits_its_schema(fake_gateway: Gateway) -> None:
    answer = await fake_gateway.client.post({**CHAT, "ttl_s": 0})
    problems.ProblemView.model_validate(answer.json(), strict=True)


async def test_a_real_job_fits_its_schema(fake_gateway: Gateway) -> None:
    job_id = await fake_gateway.create()
    answer = await fake_gateway.client.get(f"/v1/jobs/{job_id}")
    JobView.model_validate_json(answer.body)
