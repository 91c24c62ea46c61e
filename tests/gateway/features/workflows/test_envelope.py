"""Errors below `/api/workflow` have one format, also in OpenAPI; who may change and see a job."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from sluice.gateway.http.error_formats import member_path
from tests.gateway.features.workflows.seed_shapes import example
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import JSON
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import Make, check_problem, short_retries
from tests.support.gateway.workflows import CHANGES, JOBS, Workflows, check_envelope

pytestmark = pytest.mark.fakeredis_only

JOB = f"{JOBS}/wf_20260214_001"
STATUS = f"{JOB}/status"


async def test_unknown_paths_and_methods_are_rejected(workflows: Workflows) -> None:
    client = workflows.gateway.client
    for path in ("/api/workflow", "/api/workflow/", "/api/workflow/nope", JOB):
        check_envelope(await client.get(path), 404, "not_found")
    answer = await client.send("PUT", STATUS)
    assert check_envelope(answer, 405, "method_not_allowed")["job_id"] == "wf_20260214_001"
    assert answer.header("allow") == "GET"
    answer = await client.get(f"{JOBS}/nope/status")
    assert check_envelope(answer, 404, "job_not_found")["job_id"] is None
    for path in ("/api/workflows", "/api", "/v1/jobs/nope/x"):
        check_problem(await client.get(path), 404, "not_found")


async def test_malformed_bodies_are_rejected(make: Make) -> None:
    workflows, small = Workflows(make()), Workflows(make(max_document_bytes=1024))
    for body, headers, status, code in (
        (b"{", JSON, 400, "invalid_json"),
        (b"\xff", JSON, 400, "invalid_json"),
        (b"[" * 70 + b"]" * 70, JSON, 400, "nested_too_deep"),
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (b"3", JSON, 422, "validation_error"),
        (b"{}", {**JSON, "content-length": "99999999"}, 413, "payload_too_large"),
    ):
        exchange = workflows.gateway.client.begin("POST", JOBS, headers, [body])
        check_envelope(await exchange.answer(), status, code)
    exchange = small.gateway.client.begin("POST", JOBS, JSON, [b"[", b" " * 8000, b"]"])
    check_envelope(await exchange.answer(), 413, "payload_too_large")
    answer = await workflows.gateway.client.send("POST", JOBS)
    assert answer.status == 200, "no body means defaults"


async def test_missing_keys_and_scopes_are_reported(make: Make) -> None:
    workflows = Workflows(make(auth="required"))
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


async def test_an_unexpected_error_reveals_no_details(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = raising(RuntimeError("secret details"))
    monkeypatch.setattr(workflows.gateway.workflows.reader, "snapshot", broken)
    answer = await workflows.gateway.client.get(STATUS)
    check_envelope(answer, 500, "internal_error")
    assert b"secret" not in answer.body


async def test_unreachable_redis_gets_503(make: Make) -> None:
    workflows = Workflows(make())
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


async def test_clients_cannot_submit_internal_tools(workflows: Workflows) -> None:
    gateway = workflows.gateway
    before = await gateway.snapshot()
    for tool in ("workflow.step", "workflow.undo", "image.process", "sluice.anything"):
        for body, pointer in (
            ({"task": "tool", "payload": {"tool": tool, "args": {}}}, "/payload/tool"),
            ({"task": "chat", "payload": {"text": "x", "tools": ["a", tool]}}, "/payload/tools/1"),
        ):
            problem = check_problem(await gateway.client.post(body), 422, "invalid_request")
            assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
        chat = {"model": "x", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
        answer = await gateway.client.send("POST", "/v1/chat/completions", {}, chat)
        assert answer.status in (404, 422)
    assert await gateway.snapshot() == before
    for tool in ("workflow", "workflows.step", "my.workflow.step"):
        await gateway.create({"task": "tool", "payload": {"tool": tool}})


@pytest.mark.parametrize(
    ("pointer", "field"),
    [("", None), ("/a", "a"), ("/a/0/b", "a[0].b"), ("/a~1b/c~0d", "a/b.c~d"), ("/0", "[0]")],
)
def test_json_pointers_become_member_paths(pointer: str, field: str | None) -> None:
    assert member_path(pointer) == field


BOTH = ("jobs:read", "jobs:write")
ONCE = {"idempotency_key": "k-4"}


async def key_of(workflows: Workflows, *scopes: str, **more: Any) -> dict[str, str]:
    """Headers of a new key of tenant a."""
    name = "-".join((*scopes, *more))
    return bearer(await key_for(workflows.gateway, name, scopes=scopes, tenant="a", **more))


async def test_changes_need_both_scopes_and_the_task(workflows: Workflows) -> None:
    writes, reads = await key_of(workflows, "jobs:write"), await key_of(workflows, "jobs:read")
    chats = await key_of(workflows, *BOTH, tasks=("chat",))
    for name in CHANGES:
        job_id = await workflows.create_job(None, **writes)
        await workflows.until_proposals(job_id, 2)
        check_envelope(await workflows.change(job_id, name, **reads), 403, "insufficient_scope")
        answer = await workflows.change(job_id, name, **chats)
        check_envelope(answer, 403, "task_not_allowed")
        missing = await workflows.change("wf_20200101_001", name, **chats)
        check_envelope(missing, 404, "job_not_found")
        answer = await workflows.change(job_id, name, **writes)
        if name in ("execute", "decide", "cancel"):
            assert answer.status in (200, 202)
        else:  # its response has items
            check_envelope(answer, 403, "insufficient_scope")


async def test_jobs_of_other_tenants_look_like_missing_ones(workflows: Workflows) -> None:
    gateway = workflows.gateway
    own, other = [
        bearer(await key_for(gateway, tenant, scopes=BOTH, tenant=tenant)) for tenant in "ab"
    ]
    admin = bearer(await key_for(gateway, "admin", scopes=("admin",)))
    job_id = await workflows.create_job(None, **own)
    missing = f"{job_id[:-1]}9"
    before = await gateway.snapshot()
    reads = [("GET", path, None) for path in ("status", "results", "events", "events/stream")]
    for method, path, body in (*reads, *CHANGES.values()):
        answer, absent = [
            await workflows.send(f"/{name}/{path}", body, method, **other)
            for name in (job_id, missing)
        ]
        check_envelope(answer, 404, "job_not_found")
        assert answer.body == absent.body.replace(missing.encode(), job_id.encode())
    assert await gateway.snapshot() == before
    for path in ("status", "results", "events"):
        assert (await workflows.get(f"/{job_id}/{path}", **own)).status == 200
    # Whichever caller executes it, the job belongs to the tenant.
    assert (await workflows.execute(job_id, "sources", **admin)).status == 202
    [(_, message)] = await workflows.redis.xrange(gateway.keys.queue)
    core_job = f"/v1/jobs/{message[b'job_id'].decode()}"
    assert (await gateway.client.get(core_job, own)).status == 200
    assert (await gateway.client.get(core_job, other)).status == 404
    assert (await workflows.post(f"/{job_id}/cancel", **admin)).status == 200
    audit_log = await workflows.redis.xrange("access:trail")
    assert job_id.encode() in b"".join(b"".join(fields.values()) for _, fields in audit_log)


async def test_the_local_operators_cancel_of_a_tenants_job_is_recorded(
    workflows: Workflows,
) -> None:
    own = bearer(await key_for(workflows.gateway, tenant="own"))
    for headers, recorded in ((own, 1), ({}, 0)):
        job_id = await workflows.create_job(**headers)
        assert (await workflows.post(f"/{job_id}/cancel")).status == 200
        entries = (await workflows.gateway.client.get("/v1/trail")).json()["items"]
        found = [entry["who"] for entry in entries if entry["target"] == job_id]
        assert found == ["local"] * recorded


async def test_a_caller_without_read_scope_gets_no_result(workflows: Workflows) -> None:
    writes, both = await key_of(workflows, "jobs:write"), await key_of(workflows, *BOTH)
    job_id = await workflows.create_job(None, **writes)
    first = await workflows.execute(job_id, "sources", {"wait_s": 30}, **writes, **ONCE)
    assert first.status == 202, "it does not wait"
    what = (await workflows.running(job_id)).execution
    await workflows.work(job_id)
    # Again, before and after an authorised caller got the result with the same key.
    hidden = await workflows.execute(job_id, "sources", **writes, **ONCE)
    assert (hidden.status, hidden.body) == (202, first.body)
    shown = await workflows.execute(job_id, "sources", **both, **ONCE)
    assert (shown.status, len(shown.json()["result"]["items"])) == (200, 2)
    hidden = await workflows.execute(job_id, "sources", **writes, **ONCE)
    assert (hidden.status, hidden.json()["result"]["items"]) == (202, [])
    assert hidden.json()["execution_id"] == what
    again = await workflows.execute(job_id, "sources", **both, **ONCE)
    assert again.body == shown.body  # and it is still kept


async def test_a_caller_without_read_scope_may_decide(workflows: Workflows) -> None:
    writes, both = await key_of(workflows, "jobs:write"), await key_of(workflows, *BOTH)
    job_id = await workflows.create_job(None, **writes)
    await workflows.until_proposals(job_id, 1)
    stale = {"decisions": [{"id": 1, "action": "approve", "version": 7}]}
    limited = await workflows.execute(job_id, "review", {"payload": stale}, **writes)
    assert (limited.status, limited.json()["items"]) == (409, [])
    decision = {"payload": {"decisions": [{"id": 1, "action": "approve"}]}}
    shown = await workflows.execute(job_id, "review", decision, **both, **ONCE)
    assert (shown.status, len(shown.json()["result"]["items"])) == (200, 1)
    limited = await workflows.execute(job_id, "review", decision, **writes, **ONCE)
    body = limited.json()
    assert (limited.status, body["result"]["items"], body["completed"]) == (202, [], True)
    again = await workflows.execute(job_id, "review", decision, **both, **ONCE)
    assert again.body == shown.body
    empty = await workflows.create_job(None, **writes)
    await workflows.until_proposals(empty, 0)
    limited = await workflows.execute(empty, "review", **writes)
    assert (limited.status, limited.json()["result"]["items"]) == (202, []), "an ended review"


ONE_JOB = f"{JOBS}/{{job_id}}"
ROUTES = {
    ("get", "/api/workflow/definitions"): {"503"},
    ("get", "/api/workflow/webhooks/deliveries"): {"400", "422", "503"},
    ("post", JOBS): {"400", "403", "409", "413", "415", "422", "429", "503"},
    ("get", JOBS): {"400", "422", "503"},
    ("get", f"{ONE_JOB}/status"): {"404", "503"},
    ("get", f"{ONE_JOB}/results"): {"400", "404", "422", "503"},
    ("get", f"{ONE_JOB}/events"): {"400", "404", "422", "503"},
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
        (f"{ONE_JOB}/status", f"/{job_id}/status"),
        (f"{ONE_JOB}/results", f"/{job_id}/results"),
        (f"{ONE_JOB}/events", f"/{job_id}/events"),
        (JOBS, ""),
    ):
        content = document["paths"][template]["get"]["responses"]["200"]["content"]
        reference = "urn:doc" + content["application/json"]["schema"]["$ref"]
        validator = jsonschema.Draft202012Validator({"$ref": reference}, registry=registry)
        validator.validate(await workflows.read(path))


def test_the_contract_has_the_three_examples() -> None:
    assert example("success", "job")["job"]["progress"] == 0.42
    assert example("success", "step", "result")["result"]["items"][0]["id"] == "p_001"
    assert example("event_id", "emitted_at")["event_type"] == "step.completed"
