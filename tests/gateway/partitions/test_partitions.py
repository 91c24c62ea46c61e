"""A gateway with several partitions: the same API for jobs of every partition."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest
from redis.exceptions import NoPermissionError

from sluice.common.access.record import tenant_tail
from sluice.common.contracts import values_of
from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.jobs import AuditField, JobField, JobKeys
from sluice.common.jobs.audit.auditor import AuditNotPermitted
from sluice.gateway.admin.dlq import listing
from sluice.gateway.jobs.ids import new_job_id
from tests.gateway.admin.test_audit import audit
from tests.gateway.partitions.conftest import PARTITIONS, backlogs, job_in, number
from tests.support.gateway.access import id_of, key_for, post
from tests.support.gateway.dead_letters import EXHAUSTED, NOON, call
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem
from tests.support.servers import FAKE, Backend
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

LATER = {**CHAT, "delay_s": 60}


def all_keys(gateway: Gateway) -> tuple[JobKeys, ...]:
    return gateway.state.lines.partitions.keys


# -- accepting ---------------------------------------------------------------------------------


async def test_all_keys_of_a_job_are_in_its_partition(gateway: Gateway) -> None:
    job_id = await gateway.create({**CHAT, "max_attempts": 3})
    tag = f"{{{number(gateway, job_id)}}}:"
    names = [f"job:{job_id}{part}" for part in ("", ":events", ":lease")]
    names += [f"jobs:stream{part}" for part in ("", ":index", ":counts")]
    assert {key.decode() for key in await gateway.redis.keys("*")} == {tag + name for name in names}
    fields: dict[bytes, bytes] = await gateway.redis.hgetall(f"{tag}job:{job_id}")
    assert {name.decode() for name in fields} == set(values_of(JobField))
    [(_, message)] = await gateway.redis.xrange(f"{tag}jobs:stream")
    assert message[b"job_id"] == fields[b"job_id"] == job_id.encode()


async def test_jobs_are_spread_over_all_partitions(make: Make) -> None:
    gateway = make(backpressure_max_backlog=400)
    job_ids = [await gateway.create() for _ in range(60)]
    found = Counter(number(gateway, job_id) for job_id in job_ids)
    assert await backlogs(gateway) == [found[partition] for partition in range(PARTITIONS)]
    assert len(found) == PARTITIONS
    for job_id in job_ids[:20]:
        answer = await gateway.client.get(f"/v1/jobs/{job_id}")
        assert (answer.status, answer.json()["job_id"]) == (200, job_id)
    counts = await gateway.state.store.counts()
    assert (counts.accepted, counts.ended) == (60, 0)


async def test_rag_jobs_go_to_the_first_partition(gateway: Gateway) -> None:
    for _ in range(8):
        job_id = await gateway.create({"task": "rag", "payload": {"text": "where?"}})
        assert number(gateway, job_id) == 0
    for partition in range(PARTITIONS):
        job_id = gateway.state.lines.partitions.draw_id(partition, lambda: str(uuid4()))
        check_problem(await gateway.client.get(f"/v1/jobs/{job_id}"), 404, "job_not_found")


async def test_gateways_agree_on_the_partition_of_a_key(make: Make) -> None:
    one, other = make(), make()
    for count in range(10):
        key = f"order-{count}"
        job_id = await one.create(idempotency_key=key)
        assert await other.create(idempotency_key=key) == job_id
        assert await one.redis.get(one.keys_of(job_id).idempotency(key)) == job_id.encode()
        assert number(one, job_id) == number(one, f" {key}")


async def dead(
    gateway: Gateway, partition: int, id: str = "*", *, number: int = 0, job_id: str = "job"
) -> str:
    """A dead letter in a partition; returns its id in the API."""
    message = {"job_id": job_id, "task": "chat", "payload": json.dumps({"n": number})}
    fields = {"reason": EXHAUSTED, "fields": json.dumps(message), "job_id": job_id}
    key = gateway.state.lines.clients[partition].keys.dead_letters
    entry_id: bytes = await gateway.redis.xadd(key, fields, id=id)
    return f"{entry_id.decode()}.{partition}"


# -- watching ----------------------------------------------------------------------------------


async def test_hints_of_every_partition_arrive_before_the_sweep(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.gateway.events.hub.SHORTEST_SWEEP_S", 3600.0)
    monkeypatch.setattr("sluice.gateway.events.hub.LONGEST_SWEEP_S", 3600.0)
    gateway = make()
    job_ids = [await job_in(gateway, partition) for partition in range(PARTITIONS)]
    streams = [await gateway.client.watch(job_id) for job_id in job_ids]
    for stream in streams:
        await stream.event("queued")
    await eventually(lambda: len(gateway.hub._topics) == PARTITIONS)
    for job_id in job_ids:
        channel = gateway.keys_of(job_id).hints

        async def is_subscribed(channel: str = channel) -> bool:
            return bool(await gateway.redis.publish(channel, "no-job"))

        await eventually(is_subscribed)
    for job_id, stream in zip(job_ids, streams):
        await gateway.finish(job_id)
        assert (await stream.event("done")).event == "done"


# -- limits ------------------------------------------------------------------------------------


async def test_limits_are_split_over_the_partitions(make: Make) -> None:
    gateway = make(backpressure_max_backlog=10)
    answers = [await gateway.client.post(CHAT) for _ in range(40)]
    assert Counter(answer.status for answer in answers) == {202: 12, 429: 28}
    assert await backlogs(gateway) == [3] * PARTITIONS  # ten in four parts, rounded up
    check_problem(answers[-1], 429, "queue_full")
    keyed = await gateway.client.post(CHAT, {"idempotency-key": "k"})
    check_problem(keyed, 429, "queue_full")
    gateway = make(max_scheduled=8)
    answers = [await gateway.client.post(LATER) for _ in range(20)]
    assert Counter(answer.status for answer in answers) == {202: 8, 429: 12}
    check_problem(answers[-1], 429, "schedule_full")


async def test_a_keyed_job_is_rejected_if_its_partition_is_full(make: Make) -> None:
    gateway = make(backpressure_max_backlog=4)
    await gateway.create(idempotency_key="order-1")
    partition = number(gateway, " order-1")
    same = next(key for key in map(str, range(99)) if number(gateway, f" {key}") == partition)
    refused = await gateway.client.post(CHAT, {"idempotency-key": same})
    check_problem(refused, 429, "queue_full")
    for _ in range(PARTITIONS - 1):
        await gateway.create()
    assert await backlogs(gateway) == [1] * PARTITIONS


async def test_a_quota_is_counted_in_the_partition_of_the_tenant(gateway: Gateway) -> None:
    key = await key_for(gateway, max_jobs=3, tenant="acme")
    created = [(await post(gateway, key)).json()["job_id"] for _ in range(3)]
    partition = number(gateway, "acme")
    assert {number(gateway, job_id) for job_id in created} == {partition}
    assert all(job_id.endswith(tenant_tail("acme")) for job_id in created)
    active = AccessKeys(all_keys(gateway)[partition].tag).active(id_of(key))
    assert await gateway.redis.zcard(active) == 3
    check_problem(await post(gateway, key), 429, "quota_exceeded")
    gateway.state.access.quotas._last_failed_at.clear()
    await gateway.finish(created[0])
    assert (await post(gateway, key)).status == 202
    check_problem(await post(gateway, key), 429, "quota_exceeded")


async def test_a_rate_limit_holds_over_all_idempotency_keys(gateway: Gateway) -> None:
    key = await key_for(gateway, rate_per_min=1.0, burst=2)
    statuses = [
        (await post(gateway, key, idempotency_key=f"order-{count}")).status for count in range(5)
    ]
    assert statuses == [202, 202, 429, 429, 429]
    again = await post(gateway, key, idempotency_key="order-0")
    assert (again.status, again.header("idempotent-replayed")) == (202, "true")
    assert [bool(length) for length in await backlogs(gateway)].count(True) == 1


# -- integrity audit ---------------------------------------------------------------------------


async def test_every_partition_is_audited_in_one_report(gateway: Gateway) -> None:
    job_ids = [await gateway.create() for _ in range(16)]
    lost = {number(gateway, job_id): job_id for job_id in job_ids}
    assert len(lost) > 1
    for partition, job_id in lost.items():
        # No worker has had the job for a long time.
        keys = gateway.state.lines.clients[partition].keys
        for entry_id, fields in await gateway.redis.xrange(keys.queue):
            if fields[b"job_id"] == job_id.encode():
                await gateway.redis.xdel(keys.queue, entry_id)
        await gateway.redis.hset(keys.job(job_id), "updated_ts", "1760000000000")
    lines = await audit(gateway)
    report = lines[-1]
    assert report["type"] == "report"
    assert (report["jobs_checked"], report["violations_total"]) == (16, len(lost))
    reported = {line["job_id"] for line in lines if line["type"] == "violation"}
    assert reported == set(lost.values())
    shown = (await gateway.client.get("/v1/audit")).json()
    assert shown["last"]["jobs_checked"] == 16
    home, *others = [line.keys.audit for line in gateway.state.lines]
    kept = await gateway.redis.hget(home, AuditField.LAST_FOUND)
    assert {found["job_id"] for found in json.loads(kept)} == reported
    assert not await gateway.redis.exists(*others)


def scans_of(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Patterns of the scans of a server that start from the beginning."""
    begun: list[Any] = []
    scan = client.scan

    async def counted(cursor: int = 0, match: Any = None, **options: Any) -> Any:
        if cursor == 0:
            begun.append(match)
        return await scan(cursor, match=match, **options)

    monkeypatch.setattr(client, "scan", counted)
    return begun


async def test_each_server_is_scanned_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Backend(FAKE)
    gateway = make(others={2: other})
    job_ids = [await gateway.create() for _ in range(24)]
    here, there = gateway.state.lines.home.client, gateway.state.lines.clients[2].client
    for client, run_id in ((here, "a"), (there, "b")):
        monkeypatch.setattr(client, "info", AsyncMock(return_value={"run_id": run_id}))
    begun = scans_of(here, monkeypatch), scans_of(there, monkeypatch)
    report = await gateway.state.auditor.run()
    assert (report.jobs_checked, report.violations_total) == (len(job_ids), 0)
    assert begun == (["{*}:job:*"], ["{2}:job:*"])
    for client in (here, there):  # without a run id each client is scanned once
        monkeypatch.setattr(client, "info", raising(NoPermissionError("INFO")))
    assert (await gateway.state.auditor.run()).jobs_checked == len(job_ids)
    assert [len(each) for each in begun] == [2, 2]
    await other.close()


async def test_the_audit_fails_if_one_server_does_not_permit_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Backend(FAKE)
    gateway = make(others={2: other})
    there = gateway.state.lines.clients[2].client

    monkeypatch.setattr(there, "time", raising(NoPermissionError("TIME")))
    with pytest.raises(AuditNotPermitted):
        await gateway.state.auditor.run()
    assert not gateway.state.auditor.running
    await other.close()


async def some(gateway: Gateway, count: int, per_ms: int = 3) -> list[str]:
    """Add dead letters to all partitions, many with equal ids; returns their ids, newest first."""
    names = []
    for at in range(count):
        ms, partition = NOON + at // (per_ms * PARTITIONS), at % PARTITIONS
        sequence = at // PARTITIONS % per_ms
        names.append(await dead(gateway, partition, f"{ms}-{sequence}", number=at))
    return names[::-1]


async def listed(gateway: Gateway, limit: int, before: str = "") -> list[str]:
    """The ids of all pages, or of a page before an id."""
    if before:
        pages = [(await call(gateway, "GET", f"?limit={limit}&before={before}")).json()]
    else:
        pages = await gateway.client.pages(f"/v1/dlq?limit={limit}")
    return [item["id"] for page in pages for item in page["items"]]


async def left(gateway: Gateway) -> list[int]:
    """Number of dead letters in each partition."""
    return [await gateway.redis.xlen(line.keys.dead_letters) for line in gateway.state.lines]


async def test_pages_read_in_small_batches_are_complete(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = await some(gateway, 25)
    for at_once in (1, 3):
        monkeypatch.setattr(listing, "PAGE", at_once)
        for limit in (1, 7, 50):
            assert await listed(gateway, limit) == names


async def test_before_orders_dead_letters_of_the_same_time(gateway: Gateway) -> None:
    names = [await dead(gateway, partition, f"{NOON}-7") for partition in range(PARTITIONS)]
    for partition, name in enumerate(names):
        assert await listed(gateway, 50, name) == names[:partition][::-1]
    check_problem(await call(gateway, "GET", f"/{NOON}-8.2"), 404, "dead_letter_not_found")


async def test_invalid_dead_letter_ids_are_rejected(gateway: Gateway) -> None:
    for partition in range(PARTITIONS):
        await dead(gateway, partition, f"{NOON}-0")
    for suffix in ("-0", "-0.", "-0.4", "-0.-1", "-0.0.0", ".0"):
        name = f"{NOON}{suffix}"
        for method, target in [("GET", ""), ("DELETE", ""), ("POST", "/redrive")]:
            answer = await call(gateway, method, f"/{name}{target}")
            check_problem(answer, 404, "dead_letter_not_found")
        answer = await call(gateway, "GET", f"?before={name}")
        problem = check_problem(answer, 422, "invalid_request")
        assert problem["errors"][0]["pointer"] == "/before"
        answer = await call(gateway, "POST", "/redrive", {"ids": [name]})
        problem = check_problem(answer, 422, "invalid_request")
        assert problem["errors"][0]["pointer"] == "/ids/0"
    assert await left(gateway) == [1, 1, 1, 1]


async def test_ids_have_no_suffix_with_a_single_partition(make: Make) -> None:
    alone = make(queue_partitions=1)
    name = (await dead(alone, 0, f"{NOON}-0")).removesuffix(".0")
    assert await listed(alone, 50) == [name]
    check_problem(await call(alone, "GET", f"/{name}.0"), 404, "dead_letter_not_found")
    check_problem(await call(alone, "GET", f"?before={name}.0"), 422, "invalid_request")
    check_problem(await call(alone, "POST", "/redrive", {"ids": [f"{name}.0"]}), 422)


async def test_a_redriven_job_stays_in_its_partition(gateway: Gateway) -> None:
    """Equal ids in different partitions become different jobs."""
    tail = tenant_tail("acme")
    for partition in range(PARTITIONS):
        name = await dead(gateway, partition, f"{NOON}-0", job_id=new_job_id(tail))
        answer = await call(gateway, "POST", f"/{name}/redrive")
        assert answer.status == 202, answer
        job_id = answer.json()["job_id"]
        assert answer.json()["dead_letter_id"] == name
        assert job_id.endswith(tail)
        line = gateway.state.lines.clients[partition]
        assert gateway.state.lines.for_job(job_id) is line
        assert await gateway.redis.exists(line.keys.job(job_id))
        [(_, event)] = await gateway.redis.xrange(line.keys.events(job_id))
        assert json.loads(event[b"data"])["dead_letter_id"] == name
        assert (await gateway.client.get(f"/v1/jobs/{job_id}")).status == 200
        again = await call(gateway, "POST", f"/{name}/redrive")
        assert (again.status, again.json()) == (202, answer.json())
    assert await backlogs(gateway) == [1] * PARTITIONS
    assert await left(gateway) == [0] * PARTITIONS


async def test_a_full_schedule_in_one_partition_skips_the_rest(make: Make) -> None:
    gateway = make(max_scheduled=PARTITIONS)
    names = [await dead(gateway, 1, f"{NOON + at}-0") for at in range(4)]
    names.append(await dead(gateway, 2, f"{NOON + 9}-0"))
    report = (await call(gateway, "POST", "/redrive", {"ids": names, "rate_per_s": 0.1})).json()
    # The first goes at once; one may wait in each partition.
    assert [done["dead_letter_id"] for done in report["redriven"]] == names[:2]
    assert {skipped["code"] for skipped in report["skipped"]} == {"schedule_full"}


async def test_a_stream_of_another_type_is_left_out_of_the_list(gateway: Gateway) -> None:
    name = await dead(gateway, 1)
    await gateway.redis.set(gateway.state.lines.clients[2].keys.dead_letters, "x")
    assert await listed(gateway, 50) == [name]
