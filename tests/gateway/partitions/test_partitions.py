"""A gateway with several partitions: the same API, whichever partition has the job."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest

from common.access.record import tenant_tail
from common.contracts import values_of
from common.contracts.access import AccessKeys
from common.contracts.jobs import JobField, JobKeys
from common.jobs.queue import Promoter
from common.redis.partitions import Partitions
from gateway.jobs.ids import new_job_id_in
from tests.conftest import eventually
from tests.gateway.access_kit import bearer, id_of, key_for, post
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem
from tests.gateway.features.openai.kit import HELLO, RESULT, Work, begin, chunks, text_of

PARTITIONS = 4
LATER = {**CHAT, "delay_s": 60}


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    return make(queue_partitions=PARTITIONS)


def all_keys(gateway: Gateway) -> tuple[JobKeys, ...]:
    return gateway.state.lines.partitions.keys


def number(gateway: Gateway, name: str) -> int:
    return gateway.state.lines.partitions.number(name)


async def lengths(gateway: Gateway) -> list[int]:
    """Number of messages in each queue."""
    return [await gateway.redis.xlen(keys.queue) for keys in all_keys(gateway)]


async def job_in(gateway: Gateway, partition: int) -> str:
    """Create jobs until one is in the partition."""
    while True:
        job_id = await gateway.create()
        if number(gateway, job_id) == partition:
            return job_id


# -- accepting ---------------------------------------------------------------------------------


async def test_all_keys_of_a_job_are_in_its_partition(gateway: Gateway) -> None:
    job_id = await gateway.create({**CHAT, "max_attempts": 3})
    partition = number(gateway, job_id)
    tag = f"{{{partition}}}:"
    queue = f"{tag}jobs:stream"
    found = {key.decode() for key in await gateway.redis.keys("*")}
    job = f"{tag}job:{job_id}"
    assert found == {
        job,
        f"{job}:events",
        f"{job}:lease",
        queue,
        f"{queue}:index",
        f"{queue}:counts",
    }
    fields: dict[bytes, bytes] = await gateway.redis.hgetall(job)  # type: ignore[misc]
    assert {name.decode() for name in fields} == set(values_of(JobField))
    assert fields[b"job_id"] == job_id.encode()
    [(_, message)] = await gateway.redis.xrange(queue)
    assert message == {
        b"job_id": job_id.encode(),
        b"task": b"chat",
        b"payload": b'{"text":"hello"}',
    }
    [(_, event)] = await gateway.redis.xrange(f"{job}:events")
    assert event[b"type"] == b"queued"
    assert set(event) == {b"type", b"ts", b"step", b"data"}


async def test_jobs_are_spread_over_all_partitions(make: Make) -> None:
    gateway = make(queue_partitions=PARTITIONS, backpressure_max_backlog=400)
    job_ids = [await gateway.create() for _ in range(120)]
    found = Counter(number(gateway, job_id) for job_id in job_ids)
    assert await lengths(gateway) == [found[partition] for partition in range(PARTITIONS)]
    assert min(found.values()) >= 5
    for job_id in job_ids[:20]:
        answer = await gateway.client.get(f"/v1/jobs/{job_id}")
        assert (answer.status, answer.json()["job_id"]) == (200, job_id)
    counts = await gateway.state.store.counts()
    assert (counts.accepted, counts.ended) == (120, 0)


async def test_keys_of_a_single_partition_have_no_tag(make: Make) -> None:
    gateway = make(queue_partitions=1)
    job_id = await gateway.create()
    assert await gateway.redis.exists(f"job:{job_id}", "jobs:stream") == 2
    assert not await gateway.redis.keys("{*")


async def test_rag_jobs_go_to_the_first_partition(gateway: Gateway) -> None:
    for _ in range(8):
        job_id = await gateway.create({"task": "rag", "payload": {"text": "where?"}})
        assert number(gateway, job_id) == 0


async def test_an_unknown_job_is_not_found_in_any_partition(gateway: Gateway) -> None:
    for partition in range(PARTITIONS):
        job_id = gateway.state.lines.partitions.draw_id(partition, lambda: str(uuid4()))
        check_problem(await gateway.client.get(f"/v1/jobs/{job_id}"), 404, "job_not_found")


@pytest.mark.parametrize("count", [1, 2, 3, 16, 256])
def test_new_ids_belong_to_the_given_partition_and_tenant(count: int) -> None:
    partitions, tail = Partitions.create(JobKeys(), count), tenant_tail("acme")
    for number in range(count):
        ids = {new_job_id_in(partitions, number, tail) for _ in range(8)}
        assert len(ids) == 8
        for job_id in ids:
            assert partitions.number(job_id) == number
            assert job_id.endswith(tail)
            assert (str(UUID(job_id)), UUID(job_id).version) == (job_id, 4)


# -- one request, one job ----------------------------------------------------------------------


async def test_concurrent_requests_with_one_key_create_one_job(gateway: Gateway) -> None:
    for key in ("order-1", "order-2", "order-3"):
        keyed = {"idempotency-key": key}
        answers = await asyncio.gather(*(gateway.client.post(CHAT, keyed) for _ in range(20)))
        assert {answer.status for answer in answers} == {202}
        [job_id] = {answer.json()["job_id"] for answer in answers}
        assert sum(answer.header("idempotent-replayed") is None for answer in answers) == 1
        keys = gateway.keys_of(job_id)
        assert await gateway.redis.get(keys.idempotency(key)) == job_id.encode()
        assert number(gateway, job_id) == number(gateway, f" {key}")
    assert sum(await lengths(gateway)) == 3


async def test_another_request_with_the_same_key_is_rejected(gateway: Gateway) -> None:
    keyed = {"idempotency-key": "order-1"}
    await gateway.create(idempotency_key="order-1")
    before = await gateway.snapshot()
    other = {"task": "plan", "payload": {"text": "hello"}}
    check_problem(await gateway.client.post(other, keyed), 422, "idempotency_key_reused")
    assert await gateway.snapshot() == before


async def test_gateways_agree_on_the_partition_of_a_key(make: Make) -> None:
    one, other = make(queue_partitions=PARTITIONS), make(queue_partitions=PARTITIONS)
    for count in range(10):
        key = f"order-{count}"
        job_id = await one.create(idempotency_key=key)
        assert await other.create(idempotency_key=key) == job_id


# -- watching ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", [True, False], ids=["hinted", "swept"])
async def test_streams_of_every_partition_are_read_to_the_end(gateway: Gateway, hint: bool) -> None:
    job_ids = [await job_in(gateway, partition) for partition in range(PARTITIONS)]
    streams = [await gateway.client.watch(job_id) for job_id in job_ids]
    for stream in streams:
        await stream.event("queued")
    await eventually(lambda: len(gateway.hub._topics) == PARTITIONS)
    for job_id in job_ids:
        await gateway.emit(job_id, "running", hint=hint)
        await gateway.finish(job_id, hint=hint)
    for stream in streams:
        assert [block.event for block in await stream.rest()] == ["running", "done"]
    assert gateway.hub.clients == 0


async def test_hints_of_every_partition_arrive_before_the_sweep(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.events.hub.SHORTEST_SWEEP_S", 3600.0)
    monkeypatch.setattr("gateway.events.hub.LONGEST_SWEEP_S", 3600.0)
    gateway = make(queue_partitions=PARTITIONS)
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


async def test_a_stream_is_resumed_in_its_partition(gateway: Gateway) -> None:
    job_id = await job_in(gateway, 2)
    seen = await gateway.emit(job_id, "running")
    await gateway.finish(job_id)
    events = await gateway.watch_all(job_id, seen)
    assert [block.event for block in events] == ["done"]


async def test_a_deleted_job_ends_its_stream(make: Make) -> None:
    gateway = make(queue_partitions=PARTITIONS, sse_heartbeat_s=0.05)
    job_id = await job_in(gateway, 3)
    stream = await gateway.client.watch(job_id)
    await stream.event("queued")
    keys = gateway.keys_of(job_id)
    await gateway.redis.delete(keys.job(job_id), keys.events(job_id))
    assert (await stream.rest())[-1].event == "gone"


async def test_a_submission_waits_for_the_end(gateway: Gateway) -> None:
    posting = asyncio.create_task(gateway.client.post(CHAT, {"prefer": "wait=20"}))
    await eventually(lambda: gateway.hub._topics)
    [job_id] = gateway.hub._topics
    await gateway.finish(job_id)
    answer = await posting
    assert (answer.status, answer.json()["status"]) == (200, "done")
    assert answer.json()["job_id"] == job_id


async def test_a_chat_completion_follows_its_job_to_the_end(gateway: Gateway) -> None:
    for body in (HELLO, {**HELLO, "stream": True}):
        exchange = begin(gateway, body)
        await eventually(lambda: gateway.hub._topics)
        [job_id] = gateway.hub._topics
        work = Work(gateway, exchange, job_id)
        await work.run()
        await work.say("Hi there, ", "friend.")
        await work.finish()
        if body is HELLO:
            answer = (await work.answer()).json()
            assert answer["choices"][0]["message"]["content"] == RESULT["text"]
        else:
            await exchange.start()
            assert text_of(await chunks(exchange)) == RESULT["text"]
        await eventually(lambda: not gateway.hub._topics)


# -- canceling and scheduling ------------------------------------------------------------------


async def test_jobs_of_every_partition_can_be_canceled(gateway: Gateway) -> None:
    for partition in range(PARTITIONS):
        job_id = await job_in(gateway, partition)
        answer = await gateway.client.send("POST", f"/v1/jobs/{job_id}/cancel")
        assert (answer.status, answer.json()["status"]) == (200, "canceled")
        read = await gateway.client.get(f"/v1/jobs/{job_id}")
        assert read.json()["status"] == "canceled"
        assert [block.event for block in await gateway.watch_all(job_id)][-1] == "canceled"


async def test_each_partition_promotes_its_due_jobs(gateway: Gateway) -> None:
    job_ids = [await gateway.create(LATER) for _ in range(24)]
    assert sum(await lengths(gateway)) == 0
    for job_id in job_ids:
        await gateway.redis.zadd(gateway.keys_of(job_id).scheduled, {job_id: 1})
    for queue in gateway.state.queue.queues:
        await Promoter(queue).run_once()
    found = Counter(number(gateway, job_id) for job_id in job_ids)
    assert await lengths(gateway) == [found[partition] for partition in range(PARTITIONS)]


# -- limits ------------------------------------------------------------------------------------


async def test_the_backlog_limit_is_split_over_the_partitions(make: Make) -> None:
    gateway = make(queue_partitions=PARTITIONS, backpressure_max_backlog=10)
    answers = [await gateway.client.post(CHAT) for _ in range(40)]
    assert Counter(answer.status for answer in answers) == {202: 12, 429: 28}
    assert await lengths(gateway) == [3] * PARTITIONS  # ten in four parts, rounded up
    check_problem(answers[-1], 429, "queue_full")
    keyed = await gateway.client.post(CHAT, {"idempotency-key": "k"})
    check_problem(keyed, 429, "queue_full")


async def test_a_keyed_job_is_rejected_if_its_partition_is_full(make: Make) -> None:
    gateway = make(queue_partitions=PARTITIONS, backpressure_max_backlog=4)
    await gateway.create(idempotency_key="order-1")
    partition = number(gateway, " order-1")
    same = next(key for key in map(str, range(99)) if number(gateway, f" {key}") == partition)
    refused = await gateway.client.post(CHAT, {"idempotency-key": same})
    check_problem(refused, 429, "queue_full")
    for _ in range(PARTITIONS - 1):
        await gateway.create()
    assert await lengths(gateway) == [1] * PARTITIONS


async def test_the_schedule_limit_is_split_over_the_partitions(make: Make) -> None:
    gateway = make(queue_partitions=PARTITIONS, max_scheduled=8)
    answers = [await gateway.client.post(LATER) for _ in range(20)]
    assert Counter(answer.status for answer in answers) == {202: 8, 429: 12}
    check_problem(answers[-1], 429, "schedule_full")


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
    assert [bool(length) for length in await lengths(gateway)].count(True) == 1


async def test_tenants_do_not_see_jobs_of_other_tenants(gateway: Gateway) -> None:
    own, strangers = [await key_for(gateway, tenant=tenant) for tenant in ("own", "other")]
    for _ in range(6):
        job_id = (await post(gateway, own)).json()["job_id"]
        path = f"/v1/jobs/{job_id}"
        assert (await gateway.client.get(path, bearer(own))).status == 200
        check_problem(await gateway.client.get(path, bearer(strangers)), 404, "job_not_found")


async def test_concurrent_requests_keep_their_own_payloads(gateway: Gateway) -> None:
    bodies: list[dict[str, Any]] = [{"task": "chat", "payload": {"n": n}} for n in range(60)]
    job_ids = await asyncio.gather(*(gateway.create(body) for body in bodies))
    for body, job_id in zip(bodies, job_ids):
        raw = await gateway.redis.hget(gateway.keys_of(job_id).job(job_id), "payload")  # type: ignore[misc]
        assert json.loads(raw) == body["payload"]
