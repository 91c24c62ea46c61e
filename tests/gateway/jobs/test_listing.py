"""`GET /v1/jobs`: newest first, each job once, with bounded work per request."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from sluice.common.access.record import tenant_tail
from sluice.gateway.jobs import listing
from sluice.gateway.jobs.ids import new_job_id
from sluice.gateway.jobs.models import JobPage
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

NOON = 1_760_000_000_000
STATUSES = ("queued", "running", "done", "error", "canceled")
TASKS = ("chat", "plan", "code", "tool", "rag", "embed")


async def put(gateway: Gateway, ms: int = NOON, job_id: str = "", **fields: Any) -> str:
    """Store a job as if it had been accepted at `ms`."""
    job_id = job_id or str(uuid.uuid4())
    record: dict[str, Any]
    record = {"job_id": job_id, "task": "chat", "payload": '{"text":"hello"}', "status": "queued"}
    record |= {"created_ts": ms, "updated_ts": ms + 1, "ttl_s": 600, "result": "", "error": ""}
    keys = gateway.keys_of(job_id)
    await gateway.redis.hset(keys.job(job_id), mapping=record | fields)
    await gateway.redis.zadd(keys.index, {job_id: ms})
    return job_id


async def delete(gateway: Gateway, *job_ids: str) -> None:
    for job_id in job_ids:
        await gateway.redis.delete(gateway.keys_of(job_id).job(job_id))


async def ask(gateway: Gateway, key: str = "", **query: Any) -> Answer:
    return await gateway.client.get(target(query), bearer(key) if key else ())


def target(query: dict[str, Any]) -> str:
    return f"/v1/jobs?{urlencode(query, doseq=True)}" if query else "/v1/jobs"


async def page(gateway: Gateway, key: str = "", **query: Any) -> dict[str, Any]:
    answer = await ask(gateway, key, **query)
    assert answer.status == 200, answer
    assert set(answer.json()) == {"jobs", "next", "looked_at"}
    return answer.json()


async def ids(gateway: Gateway, **query: Any) -> list[str]:
    found = await page(gateway, **query)
    assert found["next"] is None
    return [job["job_id"] for job in found["jobs"]]


async def all_pages(gateway: Gateway, key: str = "", **query: Any) -> list[str]:
    """The ids of all pages."""
    pages = await gateway.client.pages(target(query), "cursor", bearer(key) if key else ())
    return [job["job_id"] for found in pages for job in found["jobs"]]


@partitioned
async def test_jobs_are_listed_newest_first_without_payloads(gateway: Gateway) -> None:
    assert await page(gateway) == {"jobs": [], "next": None, "looked_at": 0}
    first = await gateway.create({"task": "plan", "payload": {"a": 1}, "ttl_s": 77})
    await gateway.redis.zadd(gateway.keys_of(first).index, {first: NOON})
    second = await gateway.create()
    found = await page(gateway)
    JobPage.model_validate(found)
    assert [job["job_id"] for job in found["jobs"]] == [second, first]
    whole = (await gateway.client.get(f"/v1/jobs/{first}")).json()
    for large in ("payload", "result"):
        del whole[large]
    assert found["jobs"][1] == whole
    assert found["looked_at"] == 2


async def test_errors_are_shortened(gateway: Gateway) -> None:
    error = {"kind": "timeout", "message": "x" * 1000, "attempt": 3}
    await put(gateway, NOON + 2, status="error", error=json.dumps(error))
    await put(gateway, NOON + 1, status="error", error="no JSON")
    await put(gateway, NOON, status="error", error='["odd"]')
    found = [job["error"] for job in (await page(gateway))["jobs"]]
    assert found[0] == {"kind": "timeout", "message": "x" * 200}
    assert found[1:] == [{"kind": "", "message": "no JSON"}, {"kind": "", "message": '["odd"]'}]


async def test_jobs_are_filtered_by_time(gateway: Gateway) -> None:
    created = [await put(gateway, NOON + number) for number in range(5)]
    assert await ids(gateway, since=NOON + 3) == [created[4], created[3]]
    assert await ids(gateway, until=NOON + 2) == [created[1], created[0]]
    assert await ids(gateway, since=NOON + 1, until=NOON + 3) == [created[2], created[1]]
    assert await ids(gateway, since=NOON + 3, until=NOON + 1) == []
    assert len(await ids(gateway, since="2025-10-09T08:53:20Z")) == 5
    assert await ids(gateway, since="2025-10-09T10:53:20.002+02:00") == created[:1:-1]
    assert await ids(gateway, until="1969-01-01T00:00:00Z") == []
    one = await page(gateway, limit=1, until=NOON + 4)
    assert one["jobs"][0]["job_id"] == created[3]
    assert await ids(gateway, cursor=one["next"], until=NOON + 4) == created[2::-1]
    assert await ids(gateway, cursor=one["next"], until=NOON + 1) == created[:1]


TEXTS = [
    ("a needle in it", "NEEDLE in"),
    ("a NEEDLE", "needle"),
    ("Grüße aus ÖSTERREICH", "österreich"),
    ('he said "no"', 'said "NO"'),
    ("a\nb", "a\nb"),
    ("20260214", "20260214"),
    ("6f1c0f0e", "6F1C0F0E"),
]


@pytest.mark.parametrize("field", ["payload", "result", "error"])
async def test_jobs_are_found_by_text(gateway: Gateway, field: str) -> None:
    for text, query in TEXTS:
        await gateway.redis.flushall()
        await put(gateway, NOON + 3)
        plain = json.dumps({"deep": [text]}, ensure_ascii=False)
        hit = await put(gateway, NOON + 2, **{field: plain})
        escaped = await put(gateway, NOON + 1, **{field: json.dumps({"x": text.lower()})})
        assert await ids(gateway, q=query) == [hit, escaped]


async def test_jobs_are_found_by_the_start_of_their_id(gateway: Gateway) -> None:
    target = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
    await put(gateway, NOON, target)
    named = await put(gateway, NOON + 1, payload=json.dumps({"of": target}))
    await put(gateway, NOON + 2)
    for length in range(3, 9):  # short enough for a word of the payload
        assert await ids(gateway, q=target[:length]) == [named, target]
    for length in range(9, 37):
        assert await ids(gateway, q=target[:length].upper()) == [target]
    assert await ids(gateway, q=target + "0") == []
    assert (await page(gateway, q=target))["looked_at"] == 1


@partitioned
async def test_new_jobs_do_not_shift_later_pages(gateway: Gateway) -> None:
    created = [await put(gateway, NOON - number) for number in range(20)]
    first = await page(gateway, limit=8)
    for number in range(5):
        await put(gateway, NOON + 1 + number)
    await delete(gateway, created[7])  # where the page ended
    assert await all_pages(gateway, limit=5, cursor=first["next"]) == created[8:]


@partitioned
async def test_deleted_jobs_are_removed_from_the_index(gateway: Gateway) -> None:
    created = [await put(gateway, NOON - number) for number in range(20)]
    await delete(gateway, *created[:12])
    await gateway.redis.set(gateway.keys_of(created[2]).job(created[2]), "no job any more")
    assert await ids(gateway) == created[12:]
    left = [await gateway.redis.zrange(line.keys.index, 0, -1) for line in gateway.state.lines]
    assert {name.decode() for names in left for name in names} == set(created[12:])


async def test_invalid_records_and_index_entries_are_tolerated(gateway: Gateway) -> None:
    odd = await put(gateway, NOON, task="odd", status="odd", created_ts="soon", ttl_s="-1")
    client: Any = gateway.redis
    scores = {b"\xff\xfe": NOON + 1, "a b": NOON + 2, "x" * 200: NOON + 3}
    await client.zadd(gateway.keys.index, scores)
    for number, score in enumerate(["+inf", "-inf", "-5", "1.5", "1e300"]):
        await put(gateway, NOON, f"odd-{number}")
        await client.zadd(gateway.keys.index, {f"odd-{number}": score})
    found = (await page(gateway))["jobs"]
    assert len(found) == 6
    [line] = [job for job in found if job["job_id"] == odd]
    assert (line["task"], line["status"], line["created_ts"]) == ("odd", "odd", 0)
    assert len(await all_pages(gateway, limit=6)) == 6


@partitioned
async def test_an_index_of_another_type_is_reported(make: Make) -> None:
    gateway = make()
    await put(gateway)
    index = gateway.state.lines.clients[-1].keys.index
    await gateway.redis.delete(index)
    await gateway.redis.set(index, "a string")
    check_problem(await ask(gateway), 503, "store_corrupt")
    disabled = make(job_index_max=0)
    check_problem(await ask(disabled), 404, "listing_off")


INVALID = [
    *("status=odd", "status=", "status=done&status=x", "task=odd", "q=", f"q={'x' * 201}"),
    *("limit=0", "limit=201", "limit=x", "limit=-1", "limit=1e3"),
    *("since=yesterday", "since=-1", "since=1.5", "since=2025-10-09", "until=99999999999999999"),
    *("until=2025-13-09T00:00:00Z", "since=2025-10-09T00:00:00", "since=", "until=%00"),
    *("cursor=", "cursor=x", "cursor=1", "cursor=-", "cursor=1-", "cursor=1-%0a", "cursor=1-~x"),
    *(f"cursor={'9' * 17}-a", "cursor=1-a%0a", f"cursor=1-{'a' * 129}", "cursor=%F0%9F%98%80"),
    *("tenant=", "tenant=UPPER", "tenant=a/b", "tenant=%00"),
]


async def test_invalid_query_parameters_are_rejected(gateway: Gateway) -> None:
    await gateway.create()
    before = await gateway.snapshot()
    for query in INVALID:
        check_problem(await gateway.client.get(f"/v1/jobs?{query}"), 422, "invalid_request")
    assert await gateway.snapshot() == before


async def test_any_text_can_be_searched(gateway: Gateway) -> None:
    await put(gateway, payload='{"text":"\\\\"}')
    for text in ("\x00", "%", "\\", "*", "😀", "\ud800", "{", '"', "'; --"):
        escaped = quote(text.encode("utf-8", "surrogatepass"))
        assert (await gateway.client.get(f"/v1/jobs?q={escaped}")).status == 200


@partitioned
@pytest.mark.parametrize("seed", range(3))
async def test_pages_match_a_plain_search(
    gateway: Gateway, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches and limits, so that pages end at different positions."""
    some = random.Random(seed)
    for name, most in (("AT_ONCE", 5), ("TEXTS_AT_ONCE", 2), ("MOST_READ", 11)):
        monkeypatch.setattr(listing, name, some.randint(1, most))
    monkeypatch.setattr(listing, "SCAN_BATCH", some.randint(4, 9))
    monkeypatch.setattr(listing, "MAX_SCANS", some.randint(4, 6))
    monkeypatch.setattr(listing, "MOST_BYTES", some.choice((100, 1000, 10**6)))
    monkeypatch.setattr(listing, "BYTES_AT_ONCE", some.choice((100, 1000)))
    jobs: list[dict[str, Any]] = []
    for _ in range(60):
        job: dict[str, Any] = {
            "ms": NOON + some.randint(0, 20),
            "status": some.choice(STATUSES),
            "task": some.choice(TASKS),
            "payload": json.dumps({"text": some.choice(("apple", "Pear", "plum" * 20))}),
        }
        job["job_id"] = await put(gateway, **job)
        jobs.append(job)
    gone = some.sample(jobs, 5)
    await delete(gateway, *(job["job_id"] for job in gone))
    jobs = [job for job in jobs if job not in gone]
    jobs.sort(key=lambda job: (job["ms"], job["job_id"]), reverse=True)
    everything = [job["job_id"] for job in jobs]
    for limit in (1, 9, len(jobs)):
        assert await all_pages(gateway, limit=limit) == everything
    for _ in range(6):
        query: dict[str, Any] = {"limit": some.randint(1, 9)}
        for name, values in (("status", STATUSES), ("task", TASKS)):
            if some.random() < 0.5:
                query[name] = some.sample(values, some.randint(1, 3))
        if some.random() < 0.5:
            query["q"] = some.choice(("APPLE", "pear", "plumplum", jobs[0]["job_id"][:9]))
        for bound in ("since", "until"):
            if some.random() < 0.5:
                query[bound] = NOON + some.randint(0, 20)
        expected = [
            job["job_id"]
            for job in jobs
            if job["status"] in query.get("status", STATUSES)
            and job["task"] in query.get("task", TASKS)
            and query.get("since", 0) <= job["ms"] < query.get("until", NOON * 2)
            and (
                query.get("q", "").lower() in job["payload"].lower()
                or job["job_id"].startswith(query.get("q", ""))
            )
        ]
        assert await all_pages(gateway, **query) == expected


# -- bounds ----------------------------------------------------------------------------------------


@partitioned
async def test_a_request_reads_a_limited_number_of_jobs(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_READ", 10)
    monkeypatch.setattr(listing, "AT_ONCE", 5)
    created = [await put(gateway, NOON - number) for number in range(25)]
    last = await put(gateway, NOON - 99, status="done")
    found = await page(gateway, status="done")
    assert (found["jobs"], found["looked_at"]) == ([], 10)
    assert created[9] in found["next"]
    assert await all_pages(gateway, status="done") == [last]


async def test_a_request_reads_a_limited_number_of_bytes(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(listing, "BYTES_AT_ONCE", 1 << 18)
    large = json.dumps({"text": "x" * 100_000})
    for number in range(40):
        await put(gateway, NOON - number, payload=large)
    found = await page(gateway, q="nowhere")
    assert found["next"] is not None
    assert 10 < found["looked_at"] <= 10 + listing.TEXTS_AT_ONCE
    assert (await page(gateway))["looked_at"] == 40  # payloads are read only for a text search


async def test_batch_sizes_follow_the_size_of_the_jobs() -> None:
    sizer = listing._BatchSizer(listing.TEXTS_AT_ONCE)
    positions = [listing.JobPosition(1, "x")] * 1000
    sizes = []
    for several in sizer.batches(positions):
        sizes.append(len(several))
        sizer.record_batch([[b"x" * (1000 if len(sizes) < 6 else 400_000)]] * len(several))
    assert sizes[:6] == [8] * 6, "the next one may be as long as a document"
    assert sizes[-1] <= 2
    assert sum(sizes) == sizer.read == 1000


# -- tenants ---------------------------------------------------------------------------------------


@partitioned
async def test_a_tenant_sees_only_its_own_jobs(make: Make) -> None:
    gateway = make(auth="required")
    shop = await key_for(gateway, tenant="shop")
    bank = await key_for(gateway, tenant="bank")
    admin = await key_for(gateway, scopes=("admin",))
    created: dict[str, list[str]] = {"shop": [], "bank": [], "": []}
    for number in range(9):
        tenant = ("shop", "bank", "")[number % 3]
        job_id = new_job_id(tenant_tail(tenant))
        created[tenant].insert(0, await put(gateway, NOON + number // 4, job_id))
    all_jobs = await all_pages(gateway, admin)
    assert len(all_jobs) == 9
    for key, tenant in ((shop, "shop"), (bank, "bank")):
        own = [job_id for job_id in all_jobs if job_id in created[tenant]]
        for query in ({}, {"limit": 1}, {"tenant": tenant}):
            assert await all_pages(gateway, key, **query) == own
        assert await all_pages(gateway, admin, tenant=tenant) == own
        assert (await page(gateway, key))["looked_at"] == 3
    assert await page(gateway, shop, tenant="bank") == await page(gateway, shop, tenant="unknown")
    assert await page(gateway, shop, q=created["bank"][0]) == await page(
        gateway, shop, q=new_job_id()
    )


@partitioned
async def test_cursor_and_counts_reveal_nothing_of_other_tenants(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SCAN_BATCH", 3)
    monkeypatch.setattr(listing, "MIN_SCAN_BATCH", 2)
    monkeypatch.setattr(listing, "MAX_SCANS", 2)
    gateway = make(auth="required")
    shop = await key_for(gateway, tenant="shop")
    own: list[str] = []
    for number in range(60):
        if number in (1, 2, 30, 31, 59):
            job_id = new_job_id(tenant_tail("shop"))
            own.append(await put(gateway, NOON + number // 3, job_id))
        else:
            await put(gateway, NOON + number // 3)
    pages = await gateway.client.pages("/v1/jobs", "cursor", bearer(shop))
    for found in pages:
        assert found["looked_at"] == len(found["jobs"])
        assert found["next"] is None or found["next"].partition("-")[2] in (*own, "~")
    assert sorted(job["job_id"] for found in pages for job in found["jobs"]) == sorted(own)
