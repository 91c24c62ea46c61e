"""The OpenAPI document, its page at /docs, and direct routes compared with FastAPI's routing."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from sluice.gateway.admin.dlq.models import (
    DeadLetterGroups,
    DeadLetterPage,
    DeadLetterView,
    PurgeReport,
    RedrivenJob,
    RedriveReport,
    RedriveRequest,
)
from sluice.gateway.auth.permissions import PUBLIC, permission_for
from sluice.gateway.features.workflows.models.requests import CreateWorkflowRequest
from sluice.gateway.http import problems
from sluice.gateway.http.middleware import RequestMiddleware
from sluice.gateway.http.openapi.docs_page import curl, render
from sluice.gateway.jobs.models import (
    CancelRequest,
    CancelView,
    CreateJobRequest,
    JobView,
    SubmitJobResponse,
)
from tests.gateway.http.test_middleware import check_strict
from tests.gateway.jobs.test_bad_input import MISFITS
from tests.gateway.jobs.test_create import INVALID_OPTIONS
from tests.support.gateway.asgi import Client
from tests.support.gateway.harness import CHAT, Gateway, check_problem

pytestmark = pytest.mark.fakeredis_only

JOBS, JOB = "/v1/jobs", "/v1/jobs/{job_id}"
DEAD_LETTERS, DEAD_LETTER = "/v1/dlq", "/v1/dlq/{letter_id}"
#: Every operation with the problems it may answer with.
OPERATIONS: dict[tuple[str, str], set[str]] = {
    ("post", JOBS): {"400", "413", "415", "422", "429", "503"},
    ("get", JOB): {"404", "503"},
    ("delete", JOB): {"404", "503"},
    ("post", f"{JOB}/cancel"): {"400", "404", "413", "415", "422", "503"},
    ("get", f"{JOB}/events"): {"400", "404", "406", "503"},
    ("get", DEAD_LETTERS): {"422", "503"},
    ("delete", DEAD_LETTERS): {"400", "422", "503"},
    ("post", f"{DEAD_LETTERS}/redrive"): {"400", "413", "415", "422", "503"},
    ("get", f"{DEAD_LETTERS}/groups"): {"503"},
    ("get", DEAD_LETTER): {"404", "503"},
    ("delete", DEAD_LETTER): {"404", "503"},
    ("post", f"{DEAD_LETTER}/redrive"): {"404", "422", "429", "503"},
    ("get", "/v1/audit"): {"503"},
    ("post", "/v1/audit"): {"429", "503"},
    ("get", "/healthz"): set(),
    ("get", "/readyz"): {"503"},
}
#: Problems of authentication, and of the layers before it.
GUARD = {"401", "403"}
EDGE = {"400", "408", "413", "421", "431", "503"}
BODIES = {**MISFITS, **INVALID_OPTIONS}


@pytest.fixture
def twin() -> Client:
    """The same submission as a plain FastAPI route."""
    app = FastAPI()

    @app.post("/v1/jobs", status_code=202)
    async def create(job: CreateJobRequest) -> SubmitJobResponse:
        return SubmitJobResponse(job_id="x")

    problems.install(app)
    app.add_middleware(RequestMiddleware, max_body_bytes=1 << 20)
    return Client(app)


async def test_bodies_get_the_same_response_as_in_fastapi(gateway: Gateway, twin: Client) -> None:
    for name, (body, _) in BODIES.items():
        expected, actual = await twin.post(body), await gateway.client.post(body)
        assert actual.status == expected.status, name
        assert actual.header("content-type") == expected.header("content-type"), name
        left, right = actual.json(), expected.json()
        assert list(left) == list(right)
        assert (left["code"], left["title"]) == (right["code"], right["title"]), name
        assert left["errors"] == right["errors"], name
    for ttl_s in (None, 1, 30 * 24 * 3600):
        valid = {**CHAT, "ttl_s": ttl_s}
        assert (await twin.post(valid)).status == (await gateway.client.post(valid)).status == 202


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


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    references = [node["$ref"] for node in nodes(document) if isinstance(node.get("$ref"), str)]
    assert references
    for reference in references:
        assert resolve(document, reference)


def test_every_operation_is_documented(document: dict[str, Any]) -> None:
    found = {(method, path) for path, item in document["paths"].items() for method in item}
    assert set(OPERATIONS) <= found
    for method, path in found:
        operation = document["paths"][path][method]
        assert operation["summary"]
        assert operation["description"]
        if permission_for(method.upper(), re.sub(r"[{}]", "", path)) is PUBLIC:
            assert "security" not in operation
        else:
            assert operation["security"] == [{}, {"api_key": []}]
            assert {"401", "503"} <= set(operation["responses"])
    assert "bearer" in str(document["components"]["securitySchemes"])


def parameters(document: dict[str, Any], method: str, path: str) -> dict[str, dict[str, Any]]:
    listed = document["paths"][path][method].get("parameters", [])
    named = {parameter["name"]: parameter for parameter in listed}
    assert len(named) == len(listed), "a parameter is documented twice"
    return named


PARAMETERS: dict[tuple[str, str], set[str]] = {
    ("post", JOBS): {"Idempotency-Key", "Prefer", "traceparent"},
    ("get", JOB): {"job_id", "Prefer", "If-None-Match", "token"},
    ("delete", JOB): {"job_id", "Prefer"},
    ("post", f"{JOB}/cancel"): {"job_id", "Prefer"},
    ("get", f"{JOB}/events"): {"job_id", "Last-Event-ID", "last_event_id", "token"},
    ("get", DEAD_LETTERS): {"limit", "before", "reason", "fingerprint"},
    ("delete", DEAD_LETTERS): {"reason", "fingerprint", "all"},
    ("post", f"{DEAD_LETTERS}/redrive"): set(),
    ("get", DEAD_LETTER): {"letter_id"},
    ("delete", DEAD_LETTER): {"letter_id"},
    ("post", f"{DEAD_LETTER}/redrive"): {"letter_id"},
}


def test_every_parameter_is_documented(document: dict[str, Any]) -> None:
    for (method, path), names in PARAMETERS.items():
        listed = document["paths"][path][method].get("parameters", [])
        assert sorted(parameter["name"] for parameter in listed) == sorted(names)
        for parameter in listed:
            assert parameter["description"]
            assert "schema" in parameter
            assert parameter["required"] is (parameter["in"] == "path")


@pytest.mark.parametrize(
    ("path", "model", "required"),
    [
        (JOBS, CreateJobRequest, ["task", "payload"]),
        (f"{JOB}/cancel", CancelRequest, None),
        (f"{DEAD_LETTERS}/redrive", RedriveRequest, None),
        ("/api/workflow/jobs", CreateWorkflowRequest, None),
    ],
)
def test_requests_have_schemas_and_examples(
    document: dict[str, Any], path: str, model: type[BaseModel], required: list[str] | None
) -> None:
    body = document["paths"][path]["post"]["requestBody"]
    media = body["content"]["application/json"]
    model.model_validate(media["example"])
    schema = resolve(document, media["schema"]["$ref"])
    assert "$defs" not in schema
    assert set(schema["properties"]) == set(model.model_fields)
    assert schema.get("required") == required
    assert body["required"] is (model not in (CancelRequest, CreateWorkflowRequest))
    assert all(
        "description" in part or "$ref" in str(part) for part in schema["properties"].values()
    )


RESPONSES: dict[tuple[str, str, str], type[BaseModel]] = {
    ("post", JOBS, "200"): SubmitJobResponse,
    ("post", JOBS, "202"): SubmitJobResponse,
    ("get", JOB, "200"): JobView,
    ("delete", JOB, "200"): CancelView,
    ("delete", JOB, "202"): CancelView,
    ("post", f"{JOB}/cancel", "200"): CancelView,
    ("post", f"{JOB}/cancel", "202"): CancelView,
    ("get", DEAD_LETTERS, "200"): DeadLetterPage,
    ("get", f"{DEAD_LETTERS}/groups", "200"): DeadLetterGroups,
    ("get", DEAD_LETTER, "200"): DeadLetterView,
    ("delete", DEAD_LETTERS, "200"): PurgeReport,
    ("post", f"{DEAD_LETTERS}/redrive", "200"): RedriveReport,
    ("post", f"{DEAD_LETTER}/redrive", "202"): RedrivenJob,
}


def test_responses_have_schemas(document: dict[str, Any]) -> None:
    for (method, path, status), model in RESPONSES.items():
        answer = document["paths"][path][method]["responses"][status]
        schema = resolve(document, answer["content"]["application/json"]["schema"]["$ref"])
        assert set(schema["properties"]) == set(model.model_fields)
        if "job_id" in schema["properties"]:
            assert "examples" in schema["properties"]["job_id"]


def test_problems_are_documented(document: dict[str, Any]) -> None:
    """Errors have the media type application/problem+json only."""
    for (method, path), own in OPERATIONS.items():
        responses = document["paths"][path][method]["responses"]
        errors = {status for status in responses if status >= "400"}
        guarded = GUARD if permission_for(method.upper(), path) is not PUBLIC else set()
        cross_site = {"403"} if method != "get" else set()
        assert errors == own | guarded | EDGE | cross_site, (method, path)
        for status in errors:
            assert responses[status]["description"]
            [(media_type, media)] = responses[status]["content"].items()
            assert media_type == "application/problem+json"
            assert media["schema"]["$ref"].endswith("/ProblemView")
    assert "content" not in document["paths"][DEAD_LETTER]["delete"]["responses"]["204"]
    responses = document["paths"][f"{JOB}/events"]["get"]["responses"]
    assert {"text/event-stream", "application/x-ndjson"} <= set(responses["200"]["content"])
    assert "application/json" not in responses["200"]["content"]
    assert "204" in responses
    audit = document["paths"]["/v1/audit"]["post"]["responses"]["200"]
    assert set(audit["content"]) == {"application/x-ndjson"}


async def test_real_responses_match_their_schemas(gateway: Gateway) -> None:
    answer = await gateway.client.post({**CHAT, "ttl_s": 0})
    problems.ProblemView.model_validate(answer.json(), strict=True)
    answer = await gateway.client.get(f"/v1/jobs/{await gateway.create()}")
    JobView.model_validate_json(answer.body)


#: Tags that need no end.
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Fails on a page whose tags do not match; collects what is in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


@pytest.fixture(scope="session")
def html(document: dict[str, Any]) -> str:
    return render(document)


def test_the_page_loads_no_external_resources(html: str) -> None:
    page = Page(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for name, value in page.attributes:
        assert not name.startswith("on"), "inline scripts are not allowed"
        assert name != "style", "the policy forbids inline styles"
        assert name not in ("src", "href") or value.startswith("/")
    addresses = set(re.findall(r"[a-z]+://[^/\s\"'<]+", html))
    assert addresses <= {"http://localhost:8080", "https://app.example.com"}
    assert "@import" not in html
    assert "url(" not in html


async def test_page_and_document_are_served(
    gateway: Gateway, html: str, document: dict[str, Any]
) -> None:
    answer = await gateway.client.get("/openapi.json")
    assert (answer.status, answer.json()) == (200, document)
    answer = await gateway.client.get("/docs")
    assert (answer.status, answer.body.decode()) == (200, html)
    assert answer.header("content-type") == "text/html; charset=utf-8"
    check_strict(answer, None)
    assert answer.header("cross-origin-opener-policy") == "same-origin"
    assert answer.header("permissions-policy")
    [style] = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    assert "prefers-color-scheme:dark" in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = answer.header("content-security-policy") or ""
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    for target in ("/redoc", "/docs/oauth2-redirect"):  # pages that need a CDN
        check_problem(await gateway.client.get(target), 404)
    assert (await gateway.client.send("HEAD", "/docs")).status in (200, 405)


def test_every_operation_is_on_the_page(document: dict[str, Any], html: str) -> None:
    page = Page(html)
    for path, item in document["paths"].items():
        assert path in page.texts
        for method, operation in item.items():
            assert method.upper() in page.texts
            assert operation["summary"] in page.text
            for parameter in operation.get("parameters", []):
                assert parameter["name"] in page.texts
    for field in ("task", "payload", "ttl_s", "backoff", "reason", "rate_per_s"):
        assert field in page.texts
    assert "chat | plan | code | tool | rag | embed, required" in page.texts
    assert "curl -N" in page.text


def test_the_examples_are_valid_commands(document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            command = curl(method, path, operation)
            assert "{" not in command.partition(" -d ")[0], command
            assert shlex.split(command)[0] == "curl"


def test_texts_of_the_document_are_escaped() -> None:
    evil = "</code><script>alert('1')</script>`x`\"&"
    media = {"schema": {"properties": {evil: {"description": evil}}}, "example": {evil: evil}}
    operation: dict[str, Any] = {
        "tags": [evil],
        "summary": evil,
        "description": evil,
        "parameters": [
            {"name": evil, "in": "path", "description": evil, "schema": {"enum": [evil]}}
        ],
        "requestBody": {"content": {"application/json": media}},
        "responses": {"200": {"description": evil, "content": {evil: {}}}},
    }
    document: dict[str, Any] = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {f"/{evil}": {"post": operation}},
    }
    page = Page(render(document))
    assert "script" not in page.tags
    assert "alert('1')" in page.text
