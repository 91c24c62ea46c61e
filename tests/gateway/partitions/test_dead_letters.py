"""`/v1/dlq` over partitions: one list; a redriven job stays in its partition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.access.record import tenant_tail
from common.jobs import partitioned_queue
from gateway.admin.dlq import listing
from gateway.admin.dlq.models import DeadLetterPage
from gateway.jobs.ids import new_job_id
from tests.gateway.conftest import Gateway, Make, check_problem
from tests.gateway.dead_letters import EXHAUSTED, NO_JOB, call

PARTITIONS = 4
NOON = 1_760_000_000_000


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(queue_partitions=PARTITIONS)


@pytest.fixture
async def fake(fake_make: Make) -> Gateway:
    return fake_make(queue_partitions=PARTITIONS)


async def dead(
    gateway: Gateway,
    partition: int,
    id: str = "*",
    *,
    number: int = 0,
    reason: str = EXHAUSTED,
    job_id: str = "job",
    error: str = '{"kind":"last"}',
) -> str:
    """A dead letter in a partition; returns its id in the API."""
    message = {"job_id": job_id, "task": "chat", "payload": json.dumps({"n": number})}
    fields: Any = {
        "reason": reason,
        "message_id": "1-1",
        "ts": "1760000000000",
        "fields": json.dumps(message),
        "job_id": job_id,
        "attempts": "5",
        "last_error": error,
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


async def page(gateway: Gateway, query: str = "") -> dict[str, Any]:
    answer = await call(gateway, "GET", query)
    assert answer.status == 200, answer
    DeadLetterPage.model_validate_json(answer.body)
    found: dict[str, Any] = answer.json()
    return found


async def listed(gateway: Gateway, limit: int) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    before = ""
    for _ in range(200):
        answer = await page(gateway, f"?limit={limit}{before}")
        found += [item["id"] for item in answer["items"]]
        if answer["next"] is None:
            return found
        before = f"&before={answer['next']}"
    raise AssertionError("the list does not end")


async def left(gateway: Gateway) -> list[int]:
    """Number of dead letters in each partition."""
    return [await gateway.redis.xlen(line.keys.dead_letters) for line in gateway.state.lines]


async def test_dead_letters_are_one_list_newest_first(gateway: Gateway) -> None:
    names = await some(gateway, 30)
    found = await page(gateway)
    assert [item["id"] for item in found["items"]] == names
    assert (found["total"], found["next"]) == (30, None)


@pytest.mark.parametrize("limit", [1, 5, 16, 30])
async def test_pages_list_each_dead_letter_once(fake: Gateway, limit: int) -> None:
    names = await some(fake, 30)
    assert await listed(fake, limit) == names


@pytest.mark.parametrize("at_once", [1, 2, 3])
async def test_pages_read_in_small_batches_are_complete(
    fake: Gateway, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", at_once)
    names = await some(fake, 41)
    assert await listed(fake, 7) == names


async def test_pages_are_complete_if_one_partition_has_nearly_all(fake: Gateway) -> None:
    names = [await dead(fake, 2, f"{NOON + at}-0") for at in range(100)]
    names.append(await dead(fake, 0, f"{NOON + 50}-0"))
    names.sort(
        key=lambda name: partitioned_queue.parse_dead_letter_id(name, PARTITIONS), reverse=True
    )  # type: ignore[arg-type,return-value]
    assert await listed(fake, 30) == names


async def test_before_orders_dead_letters_of_the_same_time(gateway: Gateway) -> None:
    names = [await dead(gateway, partition, f"{NOON}-7") for partition in range(PARTITIONS)]
    for partition, name in enumerate(names):
        found = await page(gateway, f"?before={name}")
        assert [item["id"] for item in found["items"]] == names[:partition][::-1]


async def test_a_dead_letter_is_read_from_its_partition(gateway: Gateway) -> None:
    await dead(gateway, 1, f"{NOON}-0", number=1)
    name = await dead(gateway, 3, f"{NOON}-0", number=3)
    answer = await call(gateway, "GET", f"/{name}")
    assert answer.status == 200
    assert answer.json()["id"] == name
    assert json.loads(answer.json()["fields"]["payload"]) == {"n": 3}
    check_problem(await call(gateway, "GET", f"/{NOON}-0.2"), 404, "dead_letter_not_found")


@pytest.mark.parametrize(
    "name", [f"{NOON}-0", f"{NOON}-0.", f"{NOON}-0.4", f"{NOON}-0.-1", f"{NOON}-0.0.0", f"{NOON}.0"]
)
async def test_an_invalid_dead_letter_id_is_rejected(fake: Gateway, name: str) -> None:
    for partition in range(PARTITIONS):
        await dead(fake, partition, f"{NOON}-0")
    for method, target in [("GET", ""), ("DELETE", ""), ("POST", "/redrive")]:
        check_problem(await call(fake, method, f"/{name}{target}"), 404, "dead_letter_not_found")
    problem = check_problem(await call(fake, "GET", f"?before={name}"), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/before"
    answer = await call(fake, "POST", "/redrive", {"ids": [name]})
    problem = check_problem(answer, 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/ids/0"
    assert await left(fake) == [1, 1, 1, 1]


async def test_ids_have_no_suffix_with_a_single_partition(fake_make: Make) -> None:
    alone = fake_make()
    name = (await dead(alone, 0, f"{NOON}-0")).removesuffix(".0")
    assert [item["id"] for item in (await page(alone))["items"]] == [name]
    check_problem(await call(alone, "GET", f"/{name}.0"), 404, "dead_letter_not_found")
    check_problem(await call(alone, "GET", f"?before={name}.0"), 422, "invalid_request")
    check_problem(await call(alone, "POST", "/redrive", {"ids": [f"{name}.0"]}), 422)


@pytest.mark.parametrize("partition", range(PARTITIONS))
async def test_a_redriven_job_stays_in_its_partition(gateway: Gateway, partition: int) -> None:
    tail = tenant_tail("acme")
    name = await dead(gateway, partition, job_id=new_job_id(tail))
    answer = await call(gateway, "POST", f"/{name}/redrive")
    assert answer.status == 202, answer
    job_id = answer.json()["job_id"]
    assert answer.json()["dead_letter_id"] == name
    assert job_id.endswith(tail)
    line = gateway.state.lines.clients[partition]
    assert gateway.state.lines.for_job(job_id) is line
    assert await gateway.redis.exists(line.keys.job(job_id))
    assert await gateway.redis.xlen(line.keys.queue) == 1
    assert await left(gateway) == [0] * PARTITIONS
    [(_, event)] = await gateway.redis.xrange(line.keys.events(job_id))
    assert json.loads(event[b"data"])["dead_letter_id"] == name
    assert (await gateway.client.get(f"/v1/jobs/{job_id}")).status == 200
    again = await call(gateway, "POST", f"/{name}/redrive")
    assert (again.status, again.json()) == (202, answer.json())
    assert await gateway.redis.xlen(line.keys.queue) == 1


async def test_equal_ids_in_two_partitions_become_different_jobs(gateway: Gateway) -> None:
    names = [await dead(gateway, partition, f"{NOON}-0") for partition in range(PARTITIONS)]
    answer = await call(gateway, "POST", "/redrive", {"ids": names, "rate_per_s": 1000})
    report = answer.json()
    assert [done["dead_letter_id"] for done in report["redriven"]] == names
    partitions = [gateway.state.lines.for_job(done["job_id"]).number for done in report["redriven"]]
    assert partitions == [0, 1, 2, 3]
    assert (report["skipped"], await left(gateway)) == ([], [0] * PARTITIONS)


async def test_redrive_all_starts_with_the_newest(gateway: Gateway) -> None:
    names = await some(gateway, 20)
    dry = {"all": True, "limit": 6, "rate_per_s": 1000, "dry_run": True}
    preview = (await call(gateway, "POST", "/redrive", dry)).json()
    assert await left(gateway) == [5] * PARTITIONS
    report = (await call(gateway, "POST", "/redrive", {**dry, "dry_run": False})).json()
    assert [done["dead_letter_id"] for done in report["redriven"]] == names[:6]
    assert [done["job_id"] for done in preview["redriven"]] == [
        done["job_id"] for done in report["redriven"]
    ]
    assert [done["delay_ms"] for done in report["redriven"]] == [0, 1, 2, 3, 4, 5]
    assert sum(await left(gateway)) == 14


async def test_groups_cover_all_partitions(gateway: Gateway) -> None:
    for partition in range(PARTITIONS):
        await dead(gateway, partition, f"{NOON + partition}-0", error='{"kind":"a"}')
    newest = await dead(gateway, 1, f"{NOON + 9}-0", error='{"kind":"a"}')
    await dead(gateway, 3, f"{NOON + 8}-0", error='{"kind":"b"}')
    answer = (await call(gateway, "GET", "/groups")).json()
    assert [(group["kind"], group["count"]) for group in answer["groups"]] == [("a", 5), ("b", 1)]
    assert answer["groups"][0]["newest_id"] == newest
    assert answer["groups"][0]["oldest_id"] == f"{NOON}-0.0"
    assert (answer["total"], answer["looked_at"], answer["complete"]) == (6, 6, True)


async def test_purge_covers_all_partitions(gateway: Gateway) -> None:
    names = [await dead(gateway, partition, f"{NOON}-0") for partition in range(PARTITIONS)]
    await dead(gateway, 2, f"{NOON}-1", reason=NO_JOB)
    assert (await call(gateway, "DELETE", f"/{names[2]}")).status == 204
    assert await left(gateway) == [1, 1, 1, 1]
    purged = await call(gateway, "DELETE", f"?reason={EXHAUSTED}")
    assert (purged.json(), await left(gateway)) == ({"purged": 3}, [0, 0, 1, 0])
    purged = await call(gateway, "DELETE", "?all=true")
    assert (purged.json(), sum(await left(gateway))) == ({"purged": 1}, 0)


async def test_a_full_schedule_in_one_partition_skips_the_rest(fake_make: Make) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS, max_scheduled=PARTITIONS)
    names = [await dead(gateway, 1, f"{NOON + at}-0") for at in range(4)]
    names.append(await dead(gateway, 2, f"{NOON + 9}-0"))
    report = (await call(gateway, "POST", "/redrive", {"ids": names, "rate_per_s": 0.1})).json()
    # The first goes at once; one may wait in each partition.
    assert [done["dead_letter_id"] for done in report["redriven"]] == names[:2]
    assert {skipped["code"] for skipped in report["skipped"]} == {"schedule_full"}


async def test_a_stream_of_another_type_is_left_out_of_the_list(fake: Gateway) -> None:
    name = await dead(fake, 1)
    await fake.redis.set(fake.state.lines.clients[2].keys.dead_letters, "x")
    found = await page(fake)
    assert [item["id"] for item in found["items"]] == [name]
