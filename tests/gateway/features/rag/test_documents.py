"""Documents and terms over HTTP: which requests become jobs, which are rejected, by tenant."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from sluice.common.contracts.rag import RagKeys, namespaces_key, upload_key
from sluice.common.errors import StoreUnavailable
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.features.rag.ontology import TermEntry, term_key
from sluice.common.jobs.store import JobStore
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import JSON, Answer
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import Gateway, Make, check_problem
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

DOCUMENTS = "/v1/rag/default/documents"
NOTE = {"id": "note", "title": "A note", "text": "The office opens at nine."}


async def add(
    gateway: Gateway, body: object = NOTE, path: str = DOCUMENTS, **headers: str
) -> Answer:
    return await gateway.client.send("POST", path, {**JSON, **headers}, body)


async def payload_of(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    assert answer.status == 202, answer
    key = gateway.keys.job(answer.json()["job_id"])
    return json.loads(await gateway.redis.hget(key, "payload"))


async def store(gateway: Gateway, keys: RagKeys, *ids: str, text: str = "Öl über alles.") -> None:
    """Documents as a worker leaves them."""
    for number, document_id in enumerate(ids):
        record = DocumentRecord(document_id, f"Title {number}", "text/plain", 14, 1, "ab", "r1", 5)
        await gateway.redis.hset(keys.documents, document_id, record.to_json())
        await gateway.redis.set(keys.text(document_id), text.encode())
        await gateway.redis.zadd(keys.order, {document_id: number + 1})
    await gateway.redis.sadd(namespaces_key(keys.tenant), keys.namespace)


async def end(gateway: Gateway, job_id: str, status: str, **outcome: object) -> None:
    """The end of a job, as a worker writes it."""
    fields = {name: json.dumps(value) for name, value in outcome.items()}
    await gateway.redis.hset(
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


async def test_files_and_long_texts_are_stored_apart_from_their_job(gateway: Gateway) -> None:
    data = b"%PDF-1.7 " + bytes(range(256))
    path = f"{DOCUMENTS}?id=manual.pdf&title=Das%20Handbuch"
    answer = await add(gateway, data, path, content_type="application/pdf")
    payload = await payload_of(gateway, answer)
    assert payload["upload"] == hashlib.sha256(data).hexdigest()
    document = {"id": "manual.pdf", "title": "Das Handbuch", "media_type": "application/pdf"}
    assert payload["document"] == document
    key = upload_key(answer.json()["job_id"])
    assert await gateway.redis.get(key) == data
    assert 0 < await gateway.redis.ttl(key) <= 86_400
    canceled = await gateway.client.send("DELETE", f"/v1/jobs/{answer.json()['job_id']}")
    assert canceled.json()["status"] == "canceled"
    assert not await gateway.redis.exists(key), "a canceled job leaves no upload"
    text = "ä" * 150_000
    answer = await add(gateway, {"text": text})
    payload = await payload_of(gateway, answer)
    assert "text" not in payload["document"]
    assert payload["document"]["media_type"] == "text/plain; charset=utf-8"
    assert await gateway.redis.get(upload_key(answer.json()["job_id"])) == text.encode()


async def test_a_waiting_client_gets_the_document_or_the_failure(gateway: Gateway) -> None:
    result = {"document_id": "note", "chunks": 1, "chars": 25, "embedder": "", "replaced": False}
    for kind, status, code in (
        ("", 201, ""),
        ("unreadable_document", 422, "document_refused"),
        ("handler_error", 502, "job_failed"),
    ):
        await gateway.redis.flushall()
        exchange = gateway.client.request("POST", DOCUMENTS, {"prefer": "wait=10"}, NOTE)
        job_id = await the_job(gateway)
        if kind:
            error = {"kind": kind, "message": "the file is broken", "attempt": 1}
            await end(gateway, job_id, "error", error=error)
            problem = check_problem(await exchange.answer(), status, code)
            assert "the file is broken" in problem["detail"]
        else:
            await end(gateway, job_id, "done", result=result)
            answer = await exchange.answer()
            assert (answer.status, answer.json()) == (status, {"job_id": job_id, **result})
            assert answer.header("location") == f"{DOCUMENTS}/note"


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


async def test_invalid_requests_change_nothing(make: Make) -> None:
    gateway, small = make(), make(max_document_bytes=10_000)
    for name, (body, path, headers, status, code) in MISFITS.items():
        problem = check_problem(await add(gateway, body, path, **headers), status)
        assert problem["code"] == code, name
    for size in (10_001, 20_000):
        answer = await add(small, b"x" * size, content_type="text/plain")
        assert check_problem(answer, 413)["code"] in ("document_too_large", "body_too_large")
    body = {"task": "rag", "payload": {"text": "x" * 250_000}}
    check_problem(await gateway.client.post(body), 413)  # the limit of other jobs is unchanged
    for query in ("", "q=", "q=x&top_k=0", "q=x&mode=best", f"q={'x' * 4001}"):
        answer = await gateway.client.get(f"/v1/rag/default/search?{query}")
        check_problem(answer, 422, "invalid_request")
    assert await gateway.snapshot() == {}


async def test_repeated_and_rejected_requests_delete_their_upload(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    first = await add(gateway, b"a file", content_type="text/plain", idempotency_key="k")
    before = await gateway.snapshot()
    again = await add(gateway, b"a file", content_type="text/plain", idempotency_key="k")
    assert again.json() == first.json()
    assert again.header("idempotent-replayed") == "true"
    other = await add(gateway, b"another", content_type="text/plain", idempotency_key="k")
    check_problem(other, 422, "idempotency_key_reused")
    check_problem(await add(gateway, b"x", content_type="text/plain"), 429, "queue_full")
    assert await gateway.snapshot() == before
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


async def test_delete_and_search_wait_for_their_job(make: Make) -> None:
    gateway, hurried = make(), make(max_wait_s=0.05)
    await store(gateway, RagKeys("default"), "a")
    exchange = gateway.client.begin("DELETE", f"{DOCUMENTS}/a", {})
    await end(gateway, await the_job(gateway), "done", result={"deleted": True})
    assert (await exchange.answer()).status == 204
    unknown = await gateway.client.send("DELETE", f"{DOCUMENTS}/unknown", {}, b"")
    check_problem(unknown, 404, "document_not_found")
    await gateway.redis.flushall()
    exchange = gateway.client.begin("GET", "/v1/rag/default/search?q=when%3F&top_k=3", {})
    job_id = await the_job(gateway)
    raw = await gateway.redis.hget(gateway.keys.job(job_id), "payload")
    assert json.loads(raw) == {"query": "when?", "ns": "default", "top_k": 3, "mode": "auto"}  # type: ignore[arg-type]
    result = {"hits": [], "citations": [], "mode": "lexical"}
    await end(gateway, job_id, "done", result=result)
    answer = await exchange.answer()
    assert (answer.status, answer.json()) == (200, {"job_id": job_id, **result})
    answer = await hurried.client.get("/v1/rag/default/search?q=x")
    assert (answer.status, set(answer.json())) == (202, {"job_id"})


async def test_tenants_have_their_own_namespaces(strict: Gateway) -> None:
    shop, bank = [await key_for(strict, name, tenant=name) for name in ("shop", "bank")]
    await store(strict, RagKeys("default", "shop"), "secret")
    await learn(strict, RagKeys("default", "shop"), DLQ)
    for path in ("/v1/rag", DOCUMENTS, TERMS):
        assert len((await strict.client.get(path, bearer(shop))).json()["items"]) == 1
        assert (await strict.client.get(path, bearer(bank))).json()["items"] == []
    answer = await strict.client.get(f"{DOCUMENTS}/secret", bearer(bank))
    check_problem(answer, 404, "document_not_found")


async def test_the_rights_of_the_key_are_stored_with_the_job(strict: Gateway) -> None:
    key = await key_for(strict, tenant="shop", tools=("now",))
    answer = await add(strict, NOTE, **bearer(key))
    lease = strict.keys.lease(answer.json()["job_id"])
    options = await strict.redis.hget(lease, "options")
    assert json.loads(options) == {"tenant": "shop", "tools": ["now"]}  # type: ignore[arg-type]
    key = await key_for(strict, tasks=("chat",))
    answer = await strict.client.get("/v1/rag/default/search?q=x", bearer(key))
    check_problem(answer, 403, "task_not_allowed")


async def test_an_upload_is_kept_if_its_job_may_exist(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobStore, "enqueue", raising(StoreUnavailable("the answer was lost")))
    answer = await add(gateway, b"a file", content_type="text/plain")
    check_problem(answer, 503, "store_unavailable")
    assert len(await gateway.redis.keys("rag.upload:*")) == 1


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


async def test_cross_site_searches_are_rejected(gateway: Gateway) -> None:
    headers = {"sec-fetch-site": "cross-site"}
    answer = await gateway.client.get("/v1/rag/default/search?q=x", headers)
    check_problem(answer, 403, "foreign_origin")
    assert (await gateway.client.get(DOCUMENTS, headers)).status == 200


TERMS = "/v1/rag/default/ontology"
DLQ = TermEntry(
    "dead letter queue", ("DLQ",), "term_alias", "wf_20260214_001", "p_001", 1771081200000
)


async def learn(gateway: Gateway, keys: RagKeys, *entries: TermEntry) -> None:
    for entry in entries:
        await gateway.redis.hset(keys.ontology, term_key(entry.term), entry.to_json())


async def test_terms_are_listed_with_their_aliases(gateway: Gateway) -> None:
    empty = await gateway.client.get(TERMS)
    assert empty.json() == {"items": [], "total": 0, "next": None}
    await learn(gateway, RagKeys("default"), DLQ)
    listed = await gateway.client.get(TERMS)
    assert (listed.status, listed.header("content-type")) == (200, "application/json")
    term = {"term": "dead letter queue", "aliases": ["DLQ"], "kind": "term_alias"}
    term |= {"workflow_job_id": "wf_20260214_001", "proposal_id": "p_001"}
    items = [{**term, "added_ms": 1771081200000}]
    assert listed.json() == {"items": items, "total": 1, "next": None}


async def test_pages_list_each_term_once(gateway: Gateway) -> None:
    names = ["Ärger & Co", "Backlog", "äpfel", "backoff", "Zeit?", "東京"]
    await learn(gateway, RagKeys("default"), *map(TermEntry, names))
    pages = await gateway.client.pages(f"{TERMS}?limit=2", "after")
    assert [page["total"] for page in pages] == [len(names)] * 3
    seen = [item["term"] for page in pages for item in page["items"]]
    assert seen == sorted(names, key=term_key)


async def test_invalid_requests_for_terms_are_rejected(gateway: Gateway) -> None:
    for path in (f"{TERMS}?limit=0", f"{TERMS}?limit=501", "/v1/rag/Bad!/ontology"):
        check_problem(await gateway.client.get(path), 422)
    check_problem(await gateway.client.send("POST", TERMS), 405)
    await gateway.redis.set(RagKeys("default").ontology, "x")
    assert (await gateway.client.get(TERMS)).json()["items"] == []
