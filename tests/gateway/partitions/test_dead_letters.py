"""`/v1/dlq` over partitions: one list; a redriven job stays in its partition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.access.record import tenant_tail
from gateway.admin.dlq import listing
from gateway.jobs.ids import new_job_id
from tests.gateway.partitions.conftest import PARTITIONS, backlogs
from tests.support.gateway.dead_letters import EXHAUSTED, NOON, call
from tests.support.gateway.harness import Gateway, Make, check_problem

pytestmark = pytest.mark.fakeredis_only


async def dead(
    gateway: Gateway, partition: int, id: str = "*", *, number: int = 0, job_id: str = "job"
) -> str:
    """A dead letter in a partition; returns its id in the API."""
    message = {"job_id": job_id, "task": "chat", "payload": json.dumps({"n": number})}
    fields: Any = {
        "reason": EXHAUSTED,
        "message_id": "1-1",
        "ts": "1760000000000",
        "fields": json.dumps(message),
        "job_id": job_id,
        "attempts": "5",
        "last_error": '{"kind":"last"}',
    }
    key = gateway.state.lines.clients[partition].keys.dead_letters
    entry_id: bytes = await gateway.redis.xadd(key, fields, id=id)
    return f"{entry_id.decode()}.{partition}"


async def some(gateway: Gateway, count: int, per_ms: int = 3) -> list[str]:
    """Add dead letters to all partitions, many with equal ids; returns their ids, newest first."""
    names = []
    for at in range(count):
        ms, partition = NOON + at // (per_ms * PARTITIONS), at % PARTITIONS
        sequence = at // PARTITIONS % per_ms
        names.append(await dead(gateway, partition, f"{ms}-{sequence}", number=at))
    return names[::-1]


async def listed(gateway: Gateway, limit: int, before: str = "") -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    before = before and f"&before={before}"
    for _ in range(200):
        answer = (await call(gateway, "GET", f"?limit={limit}{before}")).json()
        found += [item["id"] for item in answer["items"]]
        if answer["next"] is None:
            return found
        before = f"&before={answer['next']}"
    raise AssertionError("the list does not end")


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
