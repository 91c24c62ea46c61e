"""Every error below `/api/workflow` has the same format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.features.workflows.lookup import WorkflowProblem
from gateway.http.error_formats import ErrorItem, member_path
from gateway.http.paths import is_workflow, workflow_job_id_in
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import Make, check_problem, short_retries
from tests.gateway.features.workflows.kit import JOBS, JSON, Workflows, check_envelope

JOB = f"{JOBS}/wf_20260214_001"
STATUS = f"{JOB}/status"


@pytest.mark.parametrize("path", ["/api/workflow", "/api/workflow/", "/api/workflow/nope", JOB])
async def test_an_unknown_path_gets_404(fake_workflows: Workflows, path: str) -> None:
    check_envelope(await fake_workflows.gateway.client.get(path), 404, "not_found")


async def test_a_wrong_method_gets_405(fake_workflows: Workflows) -> None:
    answer = await fake_workflows.gateway.client.send("PUT", STATUS)
    envelope = check_envelope(answer, 405, "method_not_allowed")
    assert envelope["job_id"] == "wf_20260214_001"
    assert answer.header("allow") == "GET"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", JSON, 400, "invalid_json"),
        (b"\xff", JSON, 400, "invalid_json"),
        (b"[" * 70 + b"]" * 70, JSON, 400, "nested_too_deep"),
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"3", JSON, 422, "validation_error"),
        (b"{}", {**JSON, "content-length": "99999999"}, 413, "payload_too_large"),
    ],
)
async def test_malformed_bodies_are_rejected(
    fake_workflows: Workflows, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    exchange = fake_workflows.gateway.client.begin("POST", JOBS, headers, [body])
    check_envelope(await exchange.answer(), status, code)


async def test_a_body_without_a_length_is_limited(fake_make: Make) -> None:
    workflows = Workflows(fake_make(max_document_bytes=1024))
    chunks = [b"[", b" " * 8000, b"]"]
    exchange = workflows.gateway.client.begin("POST", JOBS, JSON, chunks)
    check_envelope(await exchange.answer(), 413, "payload_too_large")


async def test_no_body_means_defaults(fake_workflows: Workflows) -> None:
    answer = await fake_workflows.gateway.client.send("POST", JOBS)
    assert answer.status == 200


async def test_missing_keys_and_scopes_are_reported(fake_make: Make) -> None:
    workflows = Workflows(fake_make(auth="required"))
    gateway = workflows.gateway
    answer = await gateway.client.get(STATUS)
    check_envelope(answer, 401, "key_required")
    assert (answer.header("www-authenticate") or "").startswith("Bearer")
    wrong = await gateway.client.get(STATUS, bearer("sluice_" + "a" * 40))
    check_envelope(wrong, 401, "invalid_key")
    reads = bearer(await key_for(gateway, scopes=("jobs:read",)))
    writes = bearer(await key_for(gateway, scopes=("jobs:write",)))
    check_envelope(await workflows.create(**reads), 403, "insufficient_scope")
    check_envelope(await gateway.client.get(STATUS, writes), 403, "insufficient_scope")
    for path in ("/webhooks/dlq", "/webhooks/dlq/redrive"):
        answer = await gateway.client.get(f"/api/workflow{path}", reads)
        check_envelope(answer, 403, "insufficient_scope")
    check_envelope(await gateway.client.get(STATUS, reads), 404, "job_not_found")


async def test_other_hosts_and_cross_site_requests_are_rejected(fake_workflows: Workflows) -> None:
    client = fake_workflows.gateway.client
    check_envelope(await client.get(STATUS, {"host": "evil.example"}), 421)
    cross_site = {**JSON, "origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    check_envelope(await client.send("POST", JOBS, cross_site, b"{}"), 403)


async def test_an_unexpected_error_reveals_no_details(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: Any) -> None:
        raise RuntimeError("secret details")

    monkeypatch.setattr(fake_workflows.gateway.workflows.reader, "snapshot", broken)
    answer = await fake_workflows.gateway.client.get(STATUS)
    check_envelope(answer, 500, "internal_error")
    assert b"secret" not in answer.body


async def test_unreachable_redis_gets_503(fake_make: Make) -> None:
    workflows = Workflows(fake_make())
    gateway = workflows.gateway
    server = gateway.redis.connection_pool.connection_kwargs["server"]
    server.connected = False
    with short_retries(*gateway.batchers):
        refused = [
            await gateway.client.get(STATUS),
            await gateway.client.get(f"{JOB}/results"),
            await gateway.client.get(f"{JOB}/events"),
            await gateway.client.get(JOBS),
            await workflows.create(),
        ]
    for answer in refused:
        check_envelope(answer, 503, "store_unavailable")
        assert answer.header("retry-after")
    server.connected = True
    assert (await workflows.create()).status == 200


async def test_other_paths_keep_the_problem_format(fake_workflows: Workflows) -> None:
    client = fake_workflows.gateway.client
    check_problem(await client.get("/api/workflows"), 404, "not_found")
    check_problem(await client.get("/api"), 404, "not_found")
    check_problem(await client.get("/v1/jobs/nope/x"), 404, "not_found")


@pytest.mark.parametrize(
    "payload",
    [
        {"tool": "workflow.step", "args": {"workflow_job_id": "wf_20260214_001"}},
        {"tool": "workflow.undo"},
        {"tool": "image.process"},
        {"tool": "sluice.anything"},
    ],
)
async def test_clients_cannot_submit_internal_tools(
    fake_workflows: Workflows, payload: dict[str, Any]
) -> None:
    gateway = fake_workflows.gateway
    before = await gateway.snapshot()
    problem = check_problem(
        await gateway.client.post({"task": "tool", "payload": payload}), 422, "invalid_request"
    )
    assert [fault["pointer"] for fault in problem["errors"]] == ["/payload/tool"]
    body = {"task": "chat", "payload": {"text": "x", "tools": ["clock", payload["tool"]]}}
    problem = check_problem(await gateway.client.post(body), 422, "invalid_request")
    assert [fault["pointer"] for fault in problem["errors"]] == ["/payload/tools/1"]
    body = {
        "model": "x",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [payload["tool"]],
    }
    raw = json.dumps(body).encode()
    answer = await gateway.client.send("POST", "/v1/chat/completions", JSON, raw)
    assert answer.status in (404, 422)
    assert await gateway.snapshot() == before
    for tool in ("workflow", "workflows.step", "my.workflow.step"):
        await gateway.create({"task": "tool", "payload": {"tool": tool}})


def test_a_problem_may_have_more_members() -> None:
    problem = WorkflowProblem(
        409, "version_conflict", "It has changed.", "version", "p_001",
        extra={"item": {"id": "p_001"}}, more=[ErrorItem(code="x", message="y", item_id="p_002")],
    )  # fmt: skip
    response = problem.response(STATUS)
    assert (response.status_code, response.media_type) == (409, "application/json")
    assert json.loads(bytes(response.body)) == {
        "success": False,
        "job_id": "wf_20260214_001",
        "errors": [
            {"code": "version_conflict", "message": "It has changed.", "field": "version",
             "item_id": "p_001"},
            {"code": "x", "message": "y", "field": None, "item_id": "p_002"},
        ],
        "detail": "It has changed.",
        "item": {"id": "p_001"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pointer", "field"),
    [("", None), ("/a", "a"), ("/a/0/b", "a[0].b"), ("/a~1b/c~0d", "a/b.c~d"), ("/0", "[0]")],
)
def test_json_pointers_become_member_paths(pointer: str, field: str | None) -> None:
    assert member_path(pointer) == field


def test_workflow_paths_are_recognised() -> None:
    assert is_workflow("/api/workflow/jobs")
    assert not is_workflow("/api/workflowx")
    assert workflow_job_id_in(f"{JOB}/anything") == "wf_20260214_001"
    assert workflow_job_id_in(f"{JOBS}/nope/status") is None
    assert workflow_job_id_in("/api/workflow/webhooks/dlq") is None
