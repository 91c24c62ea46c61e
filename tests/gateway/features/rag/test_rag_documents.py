"""Documents over HTTP: which requests become jobs, and which are rejected."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from common.contracts.rag import RagKeys, namespaces_key, upload_key
from common.errors import StoreUnavailable
from common.features.rag.documents import DocumentRecord
from common.jobs.store import JobStore
from tests.conftest import eventually
from tests.gateway.access_kit import JSON, bearer, key_for
from tests.gateway.asgi import Answer
from tests.gateway.conftest import Gateway, Make, check_problem

DOCUMENTS = "/v1/rag/default/documents"
NOTE = {"id": "note", "title": "A note", "text": "The office opens at nine."}


async def add(
    gateway: Gateway, body: object = NOTE, path: str = DOCUMENTS, **headers: str
) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await gateway.client.send("POST", path, {**JSON, **named}, raw)


async def payload_of(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    assert answer.status == 202, answer
    raw = await gateway.redis.hget(gateway.keys.job(answer.json()["job_id"]), "payload")  # type: ignore[misc]
    payload: dict[str, Any] = json.loads(raw)  # type: ignore[arg-type]
    return payload


async def store(gateway: Gateway, keys: RagKeys, *ids: str, text: str = "Öl über alles.") -> None:
    """Documents as a worker leaves them."""
    for number, document_id in enumerate(ids):
        record = DocumentRecord(document_id, f"Title {number}", "text/plain", 14, 1, "ab", "r1", 5)
        await gateway.redis.hset(keys.documents, document_id, record.to_json())  # type: ignore[arg-type, misc]
        await gateway.redis.set(keys.text(document_id), text.encode())
        await gateway.redis.zadd(keys.order, {document_id: number + 1})
    await gateway.redis.sadd(namespaces_key(keys.tenant), keys.namespace)  # type: ignore[misc]


async def end(gateway: Gateway, job_id: str, status: str, **outcome: object) -> None:
    """The end of a job, as a worker writes it."""
    fields = {name: json.dumps(value) for name, value in outcome.items()}
    await gateway.redis.hset(  # type: ignore[misc]
        gateway.keys.job(job_id), mapping={"status": status, "updated_ts": "1", **fields}
    )
    await gateway.emit(job_id, status, {"ms": 1})


async def the_job(gateway: Gateway) -> str:
    """Wait for the only job, and for its watcher."""

    async def one() -> str | None:
        names = [key for key in await gateway.redis.keys("job:*") if key.count(b":") == 1]
        return names[0].decode().removeprefix("job:") if names and gateway.hub.clients else None

    return str(await eventually(one))


async def test_a_text_becomes_a_job(gateway: Gateway) -> None:
    answer = await add(gateway)
    assert await payload_of(gateway, answer) == {
        "op": "ingest",
        "ns": "default",
        "document": {**NOTE, "media_type": "text/plain"},
    }
    assert answer.header("location") == f"/v1/jobs/{answer.json()['job_id']}"


async def test_a_file_is_stored_apart_from_its_job(gateway: Gateway) -> None:
    data = b"%PDF-1.7 " + bytes(range(256))
    path = f"{DOCUMENTS}?id=manual.pdf&title=Das%20Handbuch"
    answer = await add(gateway, data, path, content_type="application/pdf")
    payload = await payload_of(gateway, answer)
    assert payload["upload"] == hashlib.sha256(data).hexdigest()
    assert payload["document"] == {
        "id": "manual.pdf", "title": "Das Handbuch", "media_type": "application/pdf",
    }  # fmt: skip
    key = upload_key(answer.json()["job_id"])
    assert await gateway.redis.get(key) == data
    assert 0 < await gateway.redis.ttl(key) <= 86_400


async def test_a_long_text_is_stored_apart_from_its_job(gateway: Gateway) -> None:
    text = "ä" * 150_000
    answer = await add(gateway, {"text": text})
    payload = await payload_of(gateway, answer)
    assert "text" not in payload["document"]
    assert payload["document"]["media_type"] == "text/plain; charset=utf-8"
    assert await gateway.redis.get(upload_key(answer.json()["job_id"])) == text.encode()


async def test_a_waiting_client_gets_the_document(gateway: Gateway) -> None:
    headers = {**JSON, "prefer": "wait=10"}
    exchange = gateway.client.begin("POST", DOCUMENTS, headers, [json.dumps(NOTE).encode()])
    job_id = await the_job(gateway)
    result = {"document_id": "note", "chunks": 1, "chars": 25, "embedder": "", "replaced": False}
    await end(gateway, job_id, "done", result=result)
    answer = await exchange.answer()
    assert (answer.status, answer.json()) == (201, {"job_id": job_id, **result})
    assert answer.header("location") == f"{DOCUMENTS}/note"


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("unreadable_document", 422, "document_refused"), ("handler_error", 502, "job_failed")],
)
async def test_a_waiting_client_gets_the_failure(
    gateway: Gateway, kind: str, status: int, code: str
) -> None:
    headers = {**JSON, "prefer": "wait=10"}
    exchange = gateway.client.begin("POST", DOCUMENTS, headers, [json.dumps(NOTE).encode()])
    error = {"kind": kind, "message": "the file is broken", "attempt": 1}
    await end(gateway, await the_job(gateway), "error", error=error)
    problem = check_problem(await exchange.answer(), status, code)
    assert "the file is broken" in problem["detail"]


MISFITS: dict[str, tuple[object, str, dict[str, str], int, str]] = {
    "no text": ({"id": "x"}, DOCUMENTS, {}, 422, "invalid_request"),
    "text empty": ({"text": ""}, DOCUMENTS, {}, 422, "invalid_request"),
    "another member": ({"text": "x", "owner": "me"}, DOCUMENTS, {}, 422, "invalid_request"),
    "id with a slash": ({"text": "x", "id": "a/b"}, DOCUMENTS, {}, 422, "invalid_request"),
    "id with a colon": ({"text": "x", "id": "a:b"}, DOCUMENTS, {}, 422, "invalid_request"),
    "title too long": ({"text": "x", "title": "t" * 201}, DOCUMENTS, {}, 422, "invalid_request"),
    "pdf as JSON": (
        {"text": "x", "media_type": "application/pdf"}, DOCUMENTS, {}, 422, "invalid_request",
    ),
    "namespace in capitals": (NOTE, "/v1/rag/Shop/documents", {}, 422, "invalid_request"),
    "namespace with a colon": (NOTE, "/v1/rag/a:b/documents", {}, 422, "invalid_request"),
    "no JSON": (b"{", DOCUMENTS, {}, 400, "malformed_json"),
    "empty file": (b"", DOCUMENTS, {"content_type": "text/plain"}, 400, "empty_document"),
    "a picture": (b"x", DOCUMENTS, {"content_type": "image/png"}, 415, "unsupported_media_type"),
    "a form": (
        b"x", DOCUMENTS, {"content_type": "multipart/form-data; boundary=x"}, 415,
        "unsupported_media_type",
    ),
    "bad id of a file": (
        b"x", f"{DOCUMENTS}?id=a%20b", {"content_type": "text/plain"}, 422, "invalid_request",
    ),
    "bad key": (NOTE, DOCUMENTS, {"idempotency_key": "ä"}, 400, "invalid_idempotency_key"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
async def test_invalid_requests_change_nothing(fake_gateway: Gateway, name: str) -> None:
    body, path, headers, status, code = MISFITS[name]
    before = await fake_gateway.snapshot()
    check_problem(await add(fake_gateway, body, path, **headers), status, code)
    assert await fake_gateway.snapshot() == before


async def test_a_document_that_is_too_long_is_rejected(fake_make: Make) -> None:
    gateway = fake_make(max_document_bytes=10_000)
    for body, content_type in ((b"x" * 10_001, "text/plain"), (b"x" * 20_000, "text/plain")):
        answer = await add(gateway, body, content_type=content_type)
        assert check_problem(answer, 413)["code"] in ("document_too_large", "body_too_large")
    assert await gateway.snapshot() == {}


async def test_the_limit_of_other_rag_jobs_is_unchanged(fake_gateway: Gateway) -> None:
    body = {"task": "rag", "payload": {"text": "x" * 250_000}}
    check_problem(await fake_gateway.client.post(body), 413)


async def test_a_rejected_request_deletes_its_upload(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    await gateway.create()
    before = await gateway.snapshot()
    refused = await add(gateway, b"a file", content_type="text/plain")
    check_problem(refused, 429, "queue_full")
    assert await gateway.snapshot() == before


async def test_a_repeated_request_deletes_its_upload(gateway: Gateway) -> None:
    first = await add(gateway, b"a file", content_type="text/plain", idempotency_key="k")
    again = await add(gateway, b"a file", content_type="text/plain", idempotency_key="k")
    assert again.json() == first.json()
    assert again.header("idempotent-replayed") == "true"
    assert len(await gateway.redis.keys("rag.upload:*")) == 1
    other = await add(gateway, b"another", content_type="text/plain", idempotency_key="k")
    check_problem(other, 422, "idempotency_key_reused")
    assert len(await gateway.redis.keys("rag.upload:*")) == 1


async def test_documents_are_listed_page_by_page(gateway: Gateway) -> None:
    await store(gateway, RagKeys("default"), "c", "b", "a")
    first = (await gateway.client.get(f"{DOCUMENTS}?limit=2")).json()
    assert ([item["id"] for item in first["items"]], first["total"]) == (["a", "b"], 3)
    rest = (await gateway.client.get(f"{DOCUMENTS}?limit=2&before={first['next']}")).json()
    assert ([item["id"] for item in rest["items"]], rest["next"]) == (["c"], None)
    assert set(first["items"][0]) == {
        *("id", "title", "media_type", "chars", "chunks", "sha256", "added_ts", "embedder"),
        "revision",
    }
    check_problem(await gateway.client.get(f"{DOCUMENTS}?before=x"), 422, "invalid_request")
    assert (await gateway.client.get("/v1/rag")).json() == {"items": ["default"]}
    assert (await gateway.client.get("/v1/rag/other/documents")).json() == {
        "items": [], "total": 0, "next": None,
    }  # fmt: skip


async def test_a_document_and_its_text_are_read(gateway: Gateway) -> None:
    await store(gateway, RagKeys("default"), "a")
    assert (await gateway.client.get(f"{DOCUMENTS}/a")).json()["title"] == "Title 0"
    whole = await gateway.client.get(f"{DOCUMENTS}/a/text")
    assert (whole.body.decode(), whole.header("content-type")) == (
        "Öl über alles.",
        "text/plain; charset=utf-8",
    )
    part = await gateway.client.get(f"{DOCUMENTS}/a/text?start=3&end=7")
    assert part.body.decode() == "über"
    for path in ("unknown", "unknown/text"):
        check_problem(await gateway.client.get(f"{DOCUMENTS}/{path}"), 404, "document_not_found")


async def test_delete_waits_for_its_job(gateway: Gateway) -> None:
    await store(gateway, RagKeys("default"), "a")
    exchange = gateway.client.begin("DELETE", f"{DOCUMENTS}/a", {})
    job_id = await the_job(gateway)
    await end(gateway, job_id, "done", result={"deleted": True})
    assert (await exchange.answer()).status == 204
    unknown = await gateway.client.send("DELETE", f"{DOCUMENTS}/unknown", {}, b"")
    check_problem(unknown, 404, "document_not_found")


async def test_search_waits_for_its_job(gateway: Gateway) -> None:
    exchange = gateway.client.begin("GET", "/v1/rag/default/search?q=when%3F&top_k=3", {})
    job_id = await the_job(gateway)
    raw = await gateway.redis.hget(gateway.keys.job(job_id), "payload")  # type: ignore[misc]
    assert json.loads(raw) == {"query": "when?", "ns": "default", "top_k": 3, "mode": "auto"}  # type: ignore[arg-type]
    await end(gateway, job_id, "done", result={"hits": [], "citations": [], "mode": "lexical"})
    answer = await exchange.answer()
    assert answer.status == 200
    assert answer.json() == {"job_id": job_id, "hits": [], "citations": [], "mode": "lexical"}


async def test_a_search_that_takes_longer_gets_202(make: Make) -> None:
    gateway = make(max_wait_s=0.05)
    answer = await gateway.client.get("/v1/rag/default/search?q=x")
    assert answer.status == 202
    assert set(answer.json()) == {"job_id"}


@pytest.mark.parametrize("query", ["", "q=", "q=x&top_k=0", "q=x&mode=best", f"q={'x' * 4001}"])
async def test_an_invalid_search_is_rejected(fake_gateway: Gateway, query: str) -> None:
    answer = await fake_gateway.client.get(f"/v1/rag/default/search?{query}")
    check_problem(answer, 422, "invalid_request")
    assert await fake_gateway.snapshot() == {}


async def test_tenants_have_their_own_namespaces(make: Make) -> None:
    gateway = make(auth="required")
    shop, bank = [await key_for(gateway, name, tenant=name) for name in ("shop", "bank")]
    await store(gateway, RagKeys("default", "shop"), "secret")
    for path in ("/v1/rag", DOCUMENTS):
        assert len((await gateway.client.get(path, bearer(shop))).json()["items"]) == 1
        assert (await gateway.client.get(path, bearer(bank))).json()["items"] == []
    answer = await gateway.client.get(f"{DOCUMENTS}/secret", bearer(bank))
    check_problem(answer, 404, "document_not_found")


async def test_the_tenant_and_its_tools_are_stored_with_the_job(make: Make) -> None:
    gateway = make(auth="required")
    key = await key_for(gateway, tenant="shop", tools=("now",))
    answer = await gateway.client.send(
        "POST", DOCUMENTS, {**JSON, **bearer(key)}, json.dumps(NOTE).encode()
    )
    job_id = answer.json()["job_id"]
    options = await gateway.redis.hget(gateway.keys.lease(job_id), "options")  # type: ignore[misc]
    assert json.loads(options) == {"tenant": "shop", "tools": ["now"]}  # type: ignore[arg-type]


async def test_a_key_for_other_tasks_is_rejected(make: Make) -> None:
    gateway = make(auth="required")
    key = await key_for(gateway, tasks=("chat",))
    answer = await gateway.client.get("/v1/rag/default/search?q=x", bearer(key))
    check_problem(answer, 403, "task_not_allowed")


async def test_a_canceled_job_leaves_no_upload(gateway: Gateway) -> None:
    created = await add(gateway, b"a file", content_type="text/plain")
    canceled = await gateway.client.send("DELETE", f"/v1/jobs/{created.json()['job_id']}")
    assert canceled.json()["status"] == "canceled"
    assert await gateway.redis.keys("rag.upload:*") == []


async def test_an_upload_is_kept_if_its_job_may_exist(
    fake_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(JobStore, "enqueue", lost)
    answer = await add(fake_gateway, b"a file", content_type="text/plain")
    check_problem(answer, 503, "store_unavailable")
    assert len(await fake_gateway.redis.keys("rag.upload:*")) == 1


async def test_a_redriven_job_gets_the_upload(gateway: Gateway) -> None:
    old = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
    payload = json.dumps({"op": "ingest", "ns": "default", "upload": True})
    fields = json.dumps({"job_id": old, "task": "rag", "payload": payload})
    dead_letter: Any = {"reason": "attempts_exhausted", "fields": fields, "job_id": old, "ts": "1"}
    await gateway.redis.set(upload_key(old), b"a file")
    first = (await gateway.redis.xadd(gateway.keys.dead_letters, dead_letter)).decode()
    created = await gateway.client.send("POST", f"/v1/dlq/{first}/redrive")
    assert await gateway.redis.get(upload_key(created.json()["job_id"])) == b"a file"
    await gateway.redis.delete(upload_key(old))
    second = (await gateway.redis.xadd(gateway.keys.dead_letters, dead_letter)).decode()
    refused = await gateway.client.send("POST", f"/v1/dlq/{second}/redrive")
    check_problem(refused, 422, "not_redrivable")
    assert await gateway.redis.xlen(gateway.keys.dead_letters) == 1


async def test_cross_site_searches_are_rejected(fake_gateway: Gateway) -> None:
    headers = {"sec-fetch-site": "cross-site"}
    answer = await fake_gateway.client.get("/v1/rag/default/search?q=x", headers)
    check_problem(answer, 403, "foreign_origin")
    assert (await fake_gateway.client.get(DOCUMENTS, headers)).status == 200
