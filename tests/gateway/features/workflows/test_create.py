"""`POST /api/workflow/jobs`: members, limits, and the list of workflows."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import Mock

import pytest

from sluice.common.features.workflows import memory_first
from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from sluice.gateway.features.workflows import create
from sluice.gateway.features.workflows.models.requests import MOST_MEMBERS
from sluice.gateway.http.problems import MOST_FAULTS
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import Make
from tests.support.gateway.workflows import KEYS, PLAIN, Workflows, check_envelope

pytestmark = pytest.mark.fakeredis_only

TEXT = {"type": "text", "title": "a", "text": "A Dead Letter Queue (DLQ) holds what failed."}
STEPS = ["sources", "index_extract", "summarize", "proposals", "review", "apply", "analytics"]


async def test_an_empty_request_creates_a_job_with_defaults(workflows: Workflows) -> None:
    answer = await workflows.create()
    assert answer.status == 200
    assert answer.header("content-type") == "application/json"
    body = answer.json()
    job = body["job"]
    assert list(body) == ["success", "job"]
    assert body["success"] is True
    assert re.fullmatch(r"wf_\d{8}_001", job["job_id"])
    assert answer.header("location") == f"/api/workflow/jobs/{job['job_id']}/status"
    assert (job["workflow"], job["status"]) == ("memory_first_v2", "queued")
    assert (job["current_step"], job["progress"], job["draft_state"]) == ("sources", 0.0, "clean")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", job["started_at"])
    assert job["updated_at"] == job["started_at"]
    assert job["completed_at"] is None
    assert job["idempotency_key"] is None
    assert job["webhook"] == {
        "enabled": False, "url": None, "last_delivery_status": None, "last_delivery_at": None,
    }  # fmt: skip
    assert [step["name"] for step in job["stepper"]] == STEPS
    assert {step["status"] for step in job["stepper"]} == {"not_started"}
    assert job["undo"] == {"depth": 0, "last_undo_token": None}
    assert await workflows.status(job["job_id"]) == job
    job = (await workflows.create({"auto_advance": True, "sources": [TEXT]})).json()["job"]
    assert (job["status"], job["stepper"][0]["status"]) == ("running", "running")
    assert re.fullmatch(r"ex_[0-9a-f]{8}", job["stepper"][0]["execution_id"])


async def test_every_member_of_the_request_is_stored(workflows: Workflows) -> None:
    body = {
        "metadata": {"team": "ops", "source_count": "mine", "big": 2**70},
        "webhook": {"url": "https://example.com/hook", "events": ["step.progress", "job.failed"]},
        "namespace": "docs",
        "sources": [TEXT],
        "steps": {"index_extract": {"max_terms": 7}, "sources": {"max_source_failures": 1}},
        "review": {"mode": "auto", "auto_approve_min_confidence": 0.8, "timeout_s": 60,
                   "on_timeout": "reject"},
    }  # fmt: skip
    job_id = await workflows.create_job(body)
    reader = workflows.gateway.workflows.reader
    job = await reader.snapshot(job_id)
    assert job is not None
    assert (job.namespace, job.auto_advance) == ("docs", False)
    assert job.webhook_events == ("step.progress", "job.failed")
    assert (job.review.mode.value, job.review.min_confidence) == ("auto", 0.8)
    assert (job.review.timeout_s, job.review.on_timeout.value) == (60, "reject")
    sources = json.loads(await reader.options(job_id, "sources"))
    assert sources == {"max_source_failures": 1, "sources": [TEXT]}
    assert json.loads(await reader.options(job_id, "index_extract")) == {"max_terms": 7}
    metadata = (await workflows.status(job_id))["metadata"]
    assert (metadata["team"], metadata["big"]) == ("ops", 2**70)
    assert metadata["source_count"] == 0, "computed members take precedence"


#: Invalid requests by the field of their error.
INVALID_REQUESTS: dict[str | None, tuple[Any, ...]] = {
    None: ([],),
    "colour": ({"colour": "red"},),
    "workflow": ({"workflow": 3},),
    "metadata": ({"metadata": [1]}, {"metadata": {"a": "x" * 16384}}),
    "auto_advance": ({"auto_advance": "yes"},),
    "namespace": ({"namespace": "Ünder"},),
    "sources": (
        {"sources": "x"},
        {"sources": [TEXT], "steps": {"sources": {"sources": [TEXT]}}},
    ),
    "sources[1]": ({"sources": [TEXT, {"type": "text"}]},),
    "steps.apply": ({"steps": {"apply": 3}},),
    "steps.summarize.sentences": ({"steps": {"summarize": {"sentences": "many"}}},),
    "steps.summarize": ({"steps": {"summarize": {"nope": 1}}},),
    "steps.review": ({"steps": {"review": {}}},),
    "review.mode": ({"review": {"mode": "x"}},),
    "review.x": ({"review": {"x": 1}},),
    "review.auto_approve_min_confidence": ({"review": {"auto_approve_min_confidence": 1.5}},),
    "review.timeout_s": ({"review": {"timeout_s": 0}},),
    "idempotency_key": ({"idempotency_key": 7},),
}


async def test_invalid_requests_are_rejected_with_their_field(workflows: Workflows) -> None:
    before = await workflows.gateway.snapshot()
    for field, bodies in INVALID_REQUESTS.items():
        for body in bodies:
            envelope = check_envelope(await workflows.create(body), 422, "validation_error", field)
            assert envelope["errors"][0]["field"] == field
            assert envelope["job_id"] is None
    answer = await workflows.create({"workflow": "nope"})
    envelope = check_envelope(answer, 422, "unknown_workflow", "workflow")
    assert "memory_first_v2" in envelope["detail"]
    answer = await workflows.create({"steps": {"nope": {}}})
    check_envelope(answer, 422, "unknown_step", "steps.nope")
    for key in ("", "x" * 256, "a\nb"):
        answer = await workflows.create({"idempotency_key": key})
        check_envelope(answer, 400, "invalid_idempotency_key", "idempotency_key")
    assert await workflows.gateway.snapshot() == before


PRIVATE = [
    "ftp://example.com/x", "example.com", "", "https://", "https://u:p@example.com/",
    "http://127.0.0.1/x", "http://[::1]/", "http://10.0.0.7/", "http://169.254.169.254/",
    "http://2130706433/", "http://0x7f.1/", "https://example.com/" + "x" * 2048,
    "https://exa mple.com/", "https://[::ffff:127.0.0.1]/",
]  # fmt: skip


async def test_a_review_timeout_must_be_shorter_than_the_job_ttl(make: Make) -> None:
    workflows = Workflows(make(workflow_ttl_s=3600))
    answer = await workflows.create({"review": {"timeout_s": 3600}})
    envelope = check_envelope(answer, 422, "validation_error", "review.timeout_s")
    assert "WORKFLOW_TTL_S" in envelope["detail"]
    assert (await workflows.create({"review": {"timeout_s": 3599}})).status == 200


async def test_invalid_webhooks_are_rejected(make: Make) -> None:
    workflows = Workflows(make())
    for url in PRIVATE:
        answer = await workflows.create({"webhook_url": url})
        check_envelope(answer, 422, "validation_error", "webhook_url")
        answer = await workflows.create({"webhook": {"url": url}})
        check_envelope(answer, 422, "validation_error", "webhook.url")
    for webhook, field in (
        ({"url": "https://example.com/", "events": ["nope"]}, "webhook.events[0]"),
        ({"url": "https://example.com/", "events": []}, "webhook.events"),
        ({"url": "https://example.com/", "secret": "x"}, "webhook.secret"),
        ({"events": ["job.failed"]}, "webhook.url"),
        ("https://example.com/", "webhook"),
    ):
        answer = await workflows.create({"webhook": webhook})
        check_envelope(answer, 422, "validation_error", field)
    body = {"webhook_url": "https://a.example/", "webhook": {"url": "https://b.example/"}}
    check_envelope(await workflows.create(body), 422, "validation_error", "webhook")
    allowing = Workflows(make(workflow_webhook_allowed_hosts="127.0.0.1"))
    job = (await allowing.create({"webhook_url": "http://127.0.0.1:9/x"})).json()["job"]
    assert (job["webhook"]["enabled"], job["webhook"]["url"]) == (True, "http://127.0.0.1:9/x")


async def test_workflows_declared_by_workers_are_accepted(workflows: Workflows) -> None:
    check_envelope(await workflows.create({"workflow": "plain_v1"}), 422, "unknown_workflow")
    await workflows.declare()
    await workflows.redis.hset(KEYS.definitions, "broken_v1", b"{nope")
    catalog = workflows.gateway.workflows.catalog
    catalog._refreshed_at = float("-inf")
    job = (await workflows.create({"workflow": "plain_v1"})).json()["job"]
    assert (job["workflow"], job["current_step"]) == ("plain_v1", "fetch")
    assert [step["name"] for step in job["stepper"]] == ["fetch", "store"]
    assert set(job["metadata"]) == {"completed_steps", "last_result_by_step"}
    assert catalog.names() == ["memory_first_v2", "plain_v1"]
    for body, field in (
        ({"sources": [TEXT]}, "sources"),
        ({"review": {}}, "review"),
        ({"steps": {"fetch": {"depth": 9}}}, "steps.fetch.depth"),
    ):
        answer = await workflows.create({"workflow": PLAIN.name, **body})
        check_envelope(answer, 422, "validation_error", field)


async def test_sources_are_limited(make: Make) -> None:
    workflows = Workflows(make())
    await workflows.create_job({"sources": [{"type": "text", "text": "é" * 1_000_000}]})
    small = Workflows(make(max_document_bytes=2048))
    for size in (3000, 20_000):
        answer = await small.create({"sources": [{"type": "text", "text": "x" * size}]})
        check_envelope(answer, 413, "payload_too_large")


async def test_new_jobs_are_rejected_if_they_cannot_start(make: Make) -> None:
    workflows = Workflows(make(backpressure_max_backlog=1))
    await workflows.gateway.create()
    answer = await workflows.create({"auto_advance": True})
    check_envelope(answer, 429, "queue_full")
    assert int(answer.header("retry-after") or "0") >= 1
    first = await workflows.create(idempotency_key="k")
    assert first.status == 200, "without a step no slot is needed"
    workflows.gateway.state.pressure.refusing = True
    check_envelope(await workflows.create(), 503)
    again = await workflows.create(idempotency_key="k")
    assert (again.status, again.body) == (200, first.body)
    workflows.gateway.state.pressure.refusing = False
    key = await key_for(workflows.gateway, scopes=("jobs:write",), tasks=("chat",))
    check_envelope(await workflows.create({}, **bearer(key)), 403, "task_not_allowed")


async def test_built_in_and_declared_workflows_are_listed(workflows: Workflows) -> None:
    await workflows.declare()
    await workflows.redis.hset(KEYS.definitions, "broken", "{")
    answer = await workflows.gateway.client.get("/api/workflow/definitions", {})
    assert (answer.status, answer.json()["success"]) == (200, True)
    built_in, plain = answer.json()["workflows"]
    assert built_in["name"] == memory_first.DEFINITION.name
    assert built_in["description"] == memory_first.DEFINITION.description
    by_name = {step["name"]: step for step in built_in["steps"]}
    assert list(by_name) == [step.name for step in memory_first.DEFINITION.steps]
    assert by_name["proposals"]["proposes"] is True
    review = by_name["review"]
    assert (review["kind"], review["reviews"]) == ("review", "proposals")
    assert by_name["sources"]["reviews"] is None
    assert by_name["sources"]["options_schema"]["properties"]["sources"]["type"] == "array"
    assert plain["name"] == PLAIN.name
    assert [step["name"] for step in plain["steps"]] == ["fetch", "store"]
    assert plain["steps"][0]["options_schema"] == PLAIN.steps[0].options_schema
    assert plain["steps"][1]["options_schema"] is None


MANY = {f"m{number}": "x" for number in range(5_000)}


async def test_too_many_members_are_one_error(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    bulk = f"/{job_id}/proposals/bulk"
    for path, body, field in (
        ("", MANY, None),
        ("", {"steps": MANY}, "steps"),
        ("", {"webhook": MANY}, "webhook"),
        ("", {"review": MANY}, "review"),
        (bulk, {"action": "approve", "proposal_ids": [1], "versions": MANY}, "versions"),
        (bulk, {"action": "approve", "filter": MANY}, "filter"),
    ):
        answer = await workflows.post(path, body)
        [error] = check_envelope(answer, 422, "validation_error")["errors"]
        assert error["field"] == field
        assert "5000" in error["message"]
    payload = {"decisions": [{"id": 1, "action": "approve", **MANY}]}
    answer = await workflows.execute(job_id, "review", {"payload": payload})
    [error] = check_envelope(answer, 422, "validation_error")["errors"]
    assert error["field"] == "payload.decisions[0]"
    name = "n" * 50_000
    versions = {"action": "approve", "proposal_ids": [1], "versions": {name: 1}}
    for path, body in (("", {name: 1}), ("", {"steps": {name: {}}}), (bulk, versions)):
        answer = await workflows.post(path, body)
        check_envelope(answer, 422)
        assert len(answer.body) < 1_000, "a long name is not echoed"


async def test_a_response_lists_a_limited_number_of_errors(workflows: Workflows) -> None:
    body = dict.fromkeys(list(MANY)[:MOST_MEMBERS], 1)
    envelope = check_envelope(await workflows.create(body), 422, "validation_error")
    assert len(envelope["errors"]) == MOST_FAULTS
    assert f"{MOST_MEMBERS - MOST_FAULTS} more errors" in envelope["detail"]
    core_answer = await workflows.gateway.client.post(MANY)
    assert (core_answer.status, len(core_answer.json()["errors"])) == (422, MOST_FAULTS)


async def test_invalid_proposal_numbers_are_rejected(workflows: Workflows) -> None:
    path = f"/{await workflows.reviewing()}/proposals/bulk"
    for name in ("9" * 64, "9" * 11, "\u0663" * 3):
        body: dict[str, Any] = {"action": "approve", "proposal_ids": [name]}
        envelope = (await workflows.post(path, body)).json()
        assert [error["code"] for error in envelope["errors"]] == ["item_not_found"]
    long = {**body, "versions": {"9" * 5_000: 1}}
    check_envelope(await workflows.post(path, long), 422, "validation_error")


# -- options and the schema of their step ----------------------------------------------------


async def with_options(workflows: Workflows, schema: dict[str, Any], options: object) -> Answer:
    """A job of a workflow whose only step has this schema."""
    name = f"bounded_v{abs(hash(str(schema)))}"
    step = StepDefinition("fetch", "f", "page", 1.0, options_schema=schema)
    await workflows.declare(WorkflowDefinition(name, (step,)))
    workflows.gateway.workflows.catalog._refreshed_at = float("-inf")
    return await workflows.create({"workflow": name, "steps": {"fetch": options}})


async def test_costly_schemas_check_a_limited_number_of_members(workflows: Workflows) -> None:
    for costly in (
        {"uniqueItems": True},
        {"items": {"type": "object", "patternProperties": {"^x": {}}}},
        {"items": {"anyOf": [{"type": "object"}, {"type": "null"}]}},
    ):
        schema = {"properties": {"pages": {"type": "array", **costly}}}
        for count, status in ((400, 200), (600, 422)):
            options = {"pages": [{} if "uniqueItems" not in costly else n for n in range(count)]}
            answer = await with_options(workflows, schema, options)
            assert answer.status == status, answer
        envelope = check_envelope(answer, 422, "validation_error", "steps.fetch")
        assert "more than 500 members" in envelope["detail"]
    cheap = {"properties": {"pages": {"type": "array"}}}
    assert (await with_options(workflows, cheap, {"pages": list(range(600))})).status == 200
    sources = [{"type": "text", "title": "t", "text": "x"}] * 200
    assert (await workflows.create({"sources": sources})).status == 200
    schema = {"description": "x" * (64 * 1024)}
    envelope = check_envelope(await with_options(workflows, schema, {}), 422, "validation_error")
    assert "65536 at most" in envelope["detail"]


async def test_an_invalid_schema_is_parsed_once(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = Mock(wraps=create.Schema)
    monkeypatch.setattr(create, "Schema", parsed)
    for _ in range(3):
        answer = await with_options(workflows, {"type": "no such type"}, {})
        check_envelope(answer, 422, "validation_error", "steps.fetch")
    assert parsed.call_count == 1
