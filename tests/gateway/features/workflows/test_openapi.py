"""The OpenAPI document of the workflow API matches its responses."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from gateway.features.workflows.models.requests import EXAMPLE, CreateWorkflowRequest
from tests.gateway.features.workflows import seed_shapes
from tests.support.gateway.workflows import JOBS, Workflows

JOB = f"{JOBS}/{{job_id}}"
ROUTES = {
    ("get", "/api/workflow/definitions"): {"503"},
    ("get", "/api/workflow/webhooks/deliveries"): {"400", "422", "503"},
    ("post", JOBS): {"400", "403", "409", "413", "415", "422", "429", "503"},
    ("get", JOBS): {"400", "422", "503"},
    ("get", f"{JOB}/status"): {"404", "503"},
    ("get", f"{JOB}/results"): {"400", "404", "422", "503"},
    ("get", f"{JOB}/events"): {"400", "404", "422", "503"},
}


def test_every_route_documents_its_errors(document: dict[str, Any]) -> None:
    for (method, path), statuses in ROUTES.items():
        operation = document["paths"][path][method]
        assert operation["summary"]
        assert operation["description"]
        assert statuses | {"401", "403"} <= set(operation["responses"])


def test_errors_are_documented_as_envelopes(document: dict[str, Any]) -> None:
    """On every path of the workflow API."""
    seen = 0
    for path, item in document["paths"].items():
        if not path.startswith("/api/workflow"):
            continue
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    shape = answer["content"]["application/json"]["schema"]["$ref"]
                    assert shape == "#/components/schemas/WorkflowErrorView"
                    seen += 1
    assert seen > 30
    assert "WorkflowErrorView" in document["components"]["schemas"]
    assert "ErrorItem" in document["components"]["schemas"]


def test_the_request_is_documented(document: dict[str, Any]) -> None:
    body = document["paths"][JOBS]["post"]["requestBody"]
    assert body["required"] is False
    media = body["content"]["application/json"]
    CreateWorkflowRequest.model_validate(media["example"])
    assert media["example"] == EXAMPLE
    assert set(media["schema"]["properties"]) == set(CreateWorkflowRequest.model_fields)
    assert "required" not in media["schema"]


@pytest.mark.fakeredis_only
async def test_responses_match_their_schemas(
    workflows: Workflows, document: dict[str, Any]
) -> None:
    job_id = await workflows.create_job({"webhook_url": "https://example.com/x"})
    await workflows.until_proposals(job_id, 3)
    registry: Any = Registry().with_resource(
        "urn:doc", Resource(contents=document, specification=DRAFT202012)
    )
    for template, path in (
        (f"{JOB}/status", f"/{job_id}/status"),
        (f"{JOB}/results", f"/{job_id}/results"),
        (f"{JOB}/events", f"/{job_id}/events"),
        (JOBS, ""),
    ):
        content = document["paths"][template]["get"]["responses"]["200"]["content"]
        reference = "urn:doc" + content["application/json"]["schema"]["$ref"]
        validator = jsonschema.Draft202012Validator({"$ref": reference}, registry=registry)
        validator.validate(await workflows.read(path))


def test_the_contract_has_the_three_examples() -> None:
    assert seed_shapes.job_status()["job"]["progress"] == 0.42
    assert seed_shapes.result_schema()["result"]["items"][0]["id"] == "p_001"
    assert seed_shapes.callback()["event_type"] == "step.completed"
