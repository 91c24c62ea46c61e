"""Terms over HTTP: by name, page by page, by tenant."""

from __future__ import annotations

from urllib.parse import quote

from common.contracts.rag import RagKeys
from common.features.rag.ontology import TermEntry, term_key
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import Gateway, Make, check_problem

TERMS = "/v1/rag/default/ontology"
DLQ = TermEntry(
    "dead letter queue", ("DLQ",), "term_alias", "wf_20260214_001", "p_001", 1771081200000
)


async def learn(gateway: Gateway, keys: RagKeys, *entries: TermEntry) -> None:
    for entry in entries:
        await gateway.redis.hset(keys.ontology, term_key(entry.term), entry.to_json())  # type: ignore[misc, arg-type]


async def test_terms_are_listed_with_their_aliases(gateway: Gateway) -> None:
    empty = await gateway.client.get(TERMS)
    assert empty.json() == {"items": [], "total": 0, "next": None}
    await learn(gateway, RagKeys("default"), DLQ)
    listed = await gateway.client.get(TERMS)
    assert (listed.status, listed.header("content-type")) == (200, "application/json")
    assert listed.json() == {
        "items": [
            {
                "term": "dead letter queue",
                "aliases": ["DLQ"],
                "kind": "term_alias",
                "workflow_job_id": "wf_20260214_001",
                "proposal_id": "p_001",
                "added_ms": 1771081200000,
            }
        ],
        "total": 1,
        "next": None,
    }


async def test_pages_list_each_term_once(gateway: Gateway) -> None:
    names = ["Ärger & Co", "Backlog", "äpfel", "backoff", "Zeit?", "東京"]
    await learn(gateway, RagKeys("default"), *map(TermEntry, names))
    seen: list[str] = []
    path = f"{TERMS}?limit=2"
    for _ in range(3):
        page = (await gateway.client.get(path)).json()
        assert page["total"] == len(names)
        seen += [item["term"] for item in page["items"]]
        path = f"{TERMS}?limit=2&after={quote(page['next'] or '')}"
    assert page["next"] is None
    assert seen == sorted(names, key=term_key)


async def test_a_key_of_another_type_gives_no_terms(gateway: Gateway) -> None:
    await gateway.redis.set(RagKeys("default").ontology, "x")
    assert (await gateway.client.get(TERMS)).json()["items"] == []


async def test_invalid_requests_are_rejected(gateway: Gateway) -> None:
    for path in (f"{TERMS}?limit=0", f"{TERMS}?limit=501", "/v1/rag/Bad!/ontology"):
        check_problem(await gateway.client.get(path), 422)
    check_problem(await gateway.client.send("POST", TERMS), 405)


async def test_each_tenant_has_its_own_terms(make: Make) -> None:
    gateway = make(auth="required")
    await learn(gateway, RagKeys("default", "shop"), DLQ)
    for tenant, terms in (("shop", ["dead letter queue"]), ("bank", [])):
        key = await key_for(gateway, tenant, tenant=tenant, scopes=("jobs:read",))
        answer = await gateway.client.get(TERMS, bearer(key))
        assert [item["term"] for item in answer.json()["items"]] == terms
    writer = await key_for(gateway, "writer", scopes=("jobs:write",))
    assert (await gateway.client.get(TERMS, bearer(writer))).status == 403
    assert (await gateway.client.get(TERMS)).status == 401
