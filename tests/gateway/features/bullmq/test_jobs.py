"""BullMQ jobs: added as BullMQ's own `add` does, once per key; read, removed and rejected."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.contracts.access import Scope
from sluice.common.contracts.bullmq import BullKeys
from sluice.worker.bullmq.job import LockedJob
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Answer, Client
from tests.support.gateway.bullmq import QUEUES, QueueApi
from tests.support.gateway.harness import Make, check_problem

pytestmark = pytest.mark.real_redis


async def test_a_prioritized_job_is_stored_with_its_events(api: QueueApi) -> None:
    opts = {"priority": 1, "attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
    answer = await api.post({"name": "video-generation", "data": {"videoId": "v"}, "opts": opts})
    assert answer.status == 202
    assert answer.json() == {"id": "1", "queue": "video", "outcome": "added"}
    assert answer.header("location") == "/v1/bullmq/video/jobs/1"
    fields = await api.fields("1")
    assert fields["name"] == "video-generation"
    assert json.loads(fields["data"]) == {"videoId": "v"}
    stored = json.loads(fields["opts"])
    assert {name: stored[name] for name in opts} == opts
    assert fields["priority"] == "1"
    redis = api.gateway.redis
    assert await redis.zrange(api.keys.key("prioritized"), 0, -1) == [b"1"]
    events = [entry[b"event"] for _, entry in await redis.xrange(api.keys.events)]
    assert events == [b"added", b"waiting"]


async def test_queue_name_and_prefix_decide_the_keys(make: Make) -> None:
    api = QueueApi(make(bullmq_add_queues=",".join(QUEUES)), QUEUES[1])
    assert [await api.add() for _ in range(3)] == ["1", "2", "3"]
    assert await api.gateway.redis.lrange(api.keys.key("wait"), 0, -1) == [b"3", b"2", b"1"]
    assert await api.gateway.redis.exists("bull:{video}:1")
    assert not await api.gateway.redis.exists("bull:video:id")
    assert (await api.get("1")).json()["queue"] == "{video}"
    prefixed = QueueApi(make(bullmq_add_queues="video", bullmq_prefix="mine"))
    assert (await prefixed.post({"name": "a"})).status == 202
    key = BullKeys("video", "mine").job("1")
    assert await prefixed.gateway.redis.hget(key, "data") == b"{}"


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"backoff": 250, "attempts": 2}, {"backoff": {"type": "fixed", "delay": 250}}),
    ({"backoff": {"type": "fixed", "delay": 9, "jitter": 0.5}}, {}),
    ({"removeOnComplete": True, "removeOnFail": 5}, {}),
    ({"removeOnComplete": {"age": 60, "count": 3}}, {}),
    ({"lifo": True, "stackTraceLimit": 2}, {}),
    ({"keepLogs": 7}, {"kl": 7}),
    ({"deduplication": {"id": "d", "ttl": 500}}, {"de": {"id": "d", "ttl": 500}}),
]


async def test_options_are_stored_as_workers_read_them(api: QueueApi) -> None:
    for opts, stored in OPTIONS:
        found = json.loads((await api.fields(await api.add(opts)))["opts"])
        assert {name: found[name] for name in stored or opts} == (stored or opts)
    job_id = await api.add({"delay": 60_000, "priority": 5})
    assert await api.gateway.redis.zrange(api.keys.key("delayed"), 0, -1) == [job_id.encode()]
    view = (await api.get(job_id)).json()
    assert (view["state"], view["delay"], view["priority"]) == ("delayed", 60_000, 5)


async def test_a_custom_or_deduplicated_job_is_added_once(api: QueueApi) -> None:
    for number, (opts, outcome) in enumerate(
        (({"jobId": "report-7"}, "duplicate"), ({"deduplication": {"id": "d"}}, "deduplicated")), 1
    ):
        first = await api.post({"name": "a", "opts": opts})
        again = await api.post({"name": "a", "opts": opts})
        job_id = opts.get("jobId", first.json()["id"])
        assert first.json() == {"id": job_id, "queue": "video", "outcome": "added"}
        assert again.json() == {**first.json(), "outcome": outcome}
        assert await api.gateway.redis.llen(api.keys.key("wait")) == number


async def test_data_is_stored_unchanged(api: QueueApi) -> None:
    for data in (None, 7, "text", [1, 2], {"ä": "日本語 🎬", "n": 1 << 60}, {"t": "x" * 199_900}):
        job_id = await api.add(data={"is": data})
        raw = (await api.fields(job_id))["data"]
        assert json.loads(raw) == {"is": data}
        assert "\\u" not in raw
        assert (await api.get(job_id)).json()["data"] == {"is": data}


async def test_a_full_queue_rejects_jobs_with_retry_after(make: Make) -> None:
    api = QueueApi(make(bullmq_add_queues="video", bullmq_max_unfinished=3))
    await api.add()
    await api.add({"priority": 1})
    await api.add({"delay": 60_000, "jobId": "mine"})
    refused = await api.post({"name": "a"})
    problem = check_problem(refused, 429, "queue_full")
    assert "3 jobs" in problem["detail"]
    assert int(refused.header("retry-after") or 0) >= 1
    assert (await api.fields("4")) == {}
    # A duplicate does not count against the limit.
    again = await api.post({"name": "a", "opts": {"jobId": "mine"}})
    assert again.json()["outcome"] == "duplicate"
    await api.delete("1")
    assert (await api.post({"name": "a"})).status == 202


BODY = {"name": "render", "data": {"n": 1}, "opts": {"priority": 2}}


async def post(api: QueueApi, key: str, body: object = BODY) -> Answer:
    return await api.post(body, {"idempotency-key": key})


async def jobs(api: QueueApi) -> int:
    found = await api.gateway.redis.zcard(api.keys.key("prioritized"))
    return int(found)


async def test_the_key_becomes_the_job_id(api: QueueApi) -> None:
    answers = await asyncio.gather(*(post(api, "video-1742") for _ in range(20)))
    [first] = [answer for answer in answers if answer.json()["outcome"] == "added"]
    again = await post(api, '"video-1742"')
    assert first.json() == {"id": "video-1742", "queue": "video", "outcome": "added"}
    assert first.header("idempotency-replayed") is None
    assert first.header("idempotent-replayed") is None
    for answer in (again, *answers):
        if answer is not first:
            assert answer.json() == {**first.json(), "outcome": "replayed"}
            assert answer.header("idempotency-replayed") == "true"
            assert answer.header("idempotent-replayed") == "true", "the earlier spelling"
            assert answer.header("location") == first.header("location")
    assert await jobs(api) == 1
    left_ms = await api.gateway.redis.pttl(api.keys.idempotency("video-1742"))
    assert 86_000_000 < left_ms <= 86_400_000
    other = await post(api, "video-1742", {**BODY, "data": {"n": 2}})
    check_problem(other, 422, "idempotency_key_reused")
    check_problem(await post(api, ""), 400, "invalid_idempotency_key")
    own_id = await post(api, "k-1", {**BODY, "opts": {"jobId": "mine"}})
    problem = check_problem(own_id, 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/opts/jobId"
    assert await jobs(api) == 1
    other_queue = QueueApi(api.gateway, "{video}")
    assert (await post(other_queue, "video-1742")).json()["outcome"] == "added"
    assert (await api.delete("video-1742")).status == 200
    assert (await post(api, "video-1742")).json()["outcome"] == "replayed", "not added again"
    assert await jobs(api) == 0


async def test_a_key_that_is_no_valid_id_gets_a_derived_one(api: QueueApi) -> None:
    for key in ("17", "a:b", "meta", "a/b", "with space", "x" * 200, "key-1"):
        first, again = await post(api, key), await post(api, key)
        job_id = first.json()["id"]
        assert job_id.startswith("key-")
        assert job_id != key
        assert again.json() == {**first.json(), "outcome": "replayed"}
        assert (await api.get(job_id)).json()["state"] == "prioritized"


async def test_a_job_is_described_in_every_state(api: QueueApi) -> None:
    job_id = await api.add({"attempts": 3})
    waiting = await api.get(job_id)
    assert waiting.header("retry-after") == "1"
    view = waiting.json()
    assert (view["state"], view["progress"], view["attemptsMade"]) == ("waiting", 0, 0)
    assert view["opts"]["attempts"] == 3
    assert view["returnvalue"] is None
    await api.begin(job_id)
    await api.gateway.redis.hset(api.keys.job(job_id), "progress", "25")
    view = (await api.get(job_id)).json()
    assert (view["state"], view["progress"], view["attemptsStarted"]) == ("active", 25, 1)
    assert view["processedBy"] == "node-1"
    await api.complete(job_id, {"url": "https://example.com/v"})
    done = await api.get(job_id)
    assert done.header("retry-after") is None
    view = done.json()
    assert (view["state"], view["attemptsMade"]) == ("completed", 1)
    assert view["returnvalue"] == {"url": "https://example.com/v"}
    assert view["finishedOn"] == 1760000000001


async def test_an_unchanged_job_gets_304(api: QueueApi) -> None:
    job_id = await api.add()
    etag = (await api.get(job_id)).header("etag") or ""
    path = f"{api.path}/jobs/{job_id}"
    assert (await api.gateway.client.get(path, {"if-none-match": etag})).status == 304
    await api.begin(job_id)
    assert (await api.gateway.client.get(path, {"if-none-match": etag})).status == 200
    await api.complete(job_id, 1)
    assert (await api.delete(job_id)).json()["outcome"] == "removed"
    assert not await api.gateway.redis.exists(api.keys.key("completed"))


async def test_a_waiting_job_is_removed_completely(api: QueueApi) -> None:
    for opts in ({}, {"priority": 1}, {"delay": 60_000}):
        job_id = await api.add(opts)
        answer = await api.delete(job_id)
        assert answer.status == 200
        assert answer.json() == {"id": job_id, "queue": "video", "outcome": "removed"}
        check_problem(await api.get(job_id), 404, "job_not_found")
        check_problem(await api.delete(job_id), 404, "job_not_found")
    for state in ("wait", "prioritized", "delayed"):
        assert not await api.gateway.redis.exists(api.keys.key(state))


async def test_the_worker_of_an_active_job_is_notified(api: QueueApi) -> None:
    job_id = await api.add()
    await api.begin(job_id)
    listening = api.gateway.redis.pubsub()
    await listening.subscribe(api.keys.control)
    assert await listening.get_message(timeout=5) is not None
    answer = await api.delete(job_id)
    assert (answer.status, answer.json()["outcome"]) == (202, "canceling")
    message = await listening.get_message(ignore_subscribe_messages=True, timeout=5)
    assert message is not None
    assert message["data"] == job_id.encode()
    assert await api.gateway.redis.pttl(api.keys.cancel(job_id)) > 0
    assert (await api.get(job_id)).json()["state"] == "active"
    await listening.aclose()  # type: ignore[no-untyped-call]


async def test_the_next_job_of_a_scheduler_is_not_removed(api: QueueApi) -> None:
    job_id, redis = "repeat:daily:1760000000000", api.gateway.redis
    fields = {"name": "a", "timestamp": "1", "data": "{}", "opts": "{}", "rjk": "daily"}
    await redis.hset(api.keys.job(job_id), mapping=fields)
    await redis.zadd(api.keys.key("repeat"), {"daily": 1760000000000})
    assert (await api.get(job_id)).json()["id"] == job_id
    check_problem(await api.delete(job_id), 409, "scheduled_job")
    assert await api.fields(job_id) == fields


READ, WRITE = (Scope.JOBS_READ.value,), (Scope.JOBS_WRITE.value,)


async def test_tenants_do_not_see_jobs_of_other_tenants(api: QueueApi) -> None:
    own_key = await key_for(api.gateway, tenant="own")
    other_key = await key_for(api.gateway, tenant="other")
    numbered = await api.add()
    created = []
    for opts in ({}, {"jobId": "same"}, {"deduplication": {"id": "same"}}):
        for key in (own_key, other_key):
            answer = await api.post({"name": "a", "opts": opts}, bearer(key))
            assert answer.json()["outcome"] == "added", opts
            created.append((key, answer.json()["id"]))
    for key in (own_key, other_key):
        answer = await api.post({"name": "a"}, bearer(key, idempotency_key="once"))
        assert answer.json()["outcome"] == "added"
        created.append((key, answer.json()["id"]))
    for key, job_id in created:
        other = other_key if key == own_key else own_key
        assert (await api.get(job_id, key)).status == 200
        check_problem(await api.get(job_id, other), 404, "job_not_found")
        check_problem(await api.delete(job_id, other), 404, "job_not_found")
        path = f"{api.path}/jobs/{job_id}/events"
        check_problem(await api.gateway.client.get(path, bearer(other)), 404, "job_not_found")
        assert (await api.get(job_id)).status == 200  # a local caller without a key
    check_problem(await api.get(numbered, own_key), 404, "job_not_found")


async def test_removing_a_tenants_job_without_its_key_is_recorded(api: QueueApi) -> None:
    own_key = await key_for(api.gateway, tenant="own")
    mine, others, plain = [
        (await api.post({"name": "a"}, bearer(key) if key else {})).json()["id"]
        for key in (own_key, own_key, "")
    ]
    for job_id, key in ((mine, own_key), (others, ""), (plain, "")):
        assert (await api.delete(job_id, key)).status == 200
    [entry] = (await api.gateway.client.get("/v1/trail")).json()["items"]
    found = entry["who"], entry["action"], entry["target"]
    assert found == ("local", "job.cancel", f"video/{others}")


FORBIDDEN_OPTIONS: dict[str, tuple[Any, ...]] = {
    "removeOnComplete": (0, 5, {"count": 1}, {"age": 1}, {}),
    "removeOnFail": (1, {"count": 1, "age": 60, "limit": 9}),
    "priority": (1, 2_097_151),
    "lifo": (True,),
}


async def test_a_tenants_job_cannot_affect_other_jobs(api: QueueApi) -> None:
    own_key = await key_for(api.gateway, tenant="own")
    for name, values in FORBIDDEN_OPTIONS.items():
        for value in values:
            answer = await api.post({"name": "a", "opts": {name: value}}, bearer(own_key))
            problem = check_problem(answer, 403, "option_not_allowed")
            assert [fault["pointer"] for fault in problem["errors"]] == [f"/opts/{name}"]
            assert f"/opts/{name}" in problem["detail"]
    assert await api.gateway.redis.keys("bull:*") == []
    harmless = {"removeOnComplete": True, "removeOnFail": False, "priority": 0, "lifo": False}
    answer = await api.post({"name": "a", "opts": harmless}, bearer(own_key))
    assert answer.status == 202
    operators = (
        await key_for(api.gateway),
        await key_for(api.gateway, tenant="own", scopes=(Scope.ADMIN.value,)),
    )
    for key in operators:
        for name, values in FORBIDDEN_OPTIONS.items():
            opts = {name: values[-1]}
            assert (await api.post({"name": "a", "opts": opts}, bearer(key))).status == 202


async def test_a_queue_stream_has_only_jobs_of_the_tenant(api: QueueApi) -> None:
    own_key = await key_for(api.gateway, tenant="own")
    other_key = await key_for(api.gateway, tenant="other")
    stream = await api.watch(authorization=f"Bearer {own_key}")
    await stream.event("hello")
    await api.add()
    await api.post({"name": "a"}, bearer(other_key))
    job_id = (await api.post({"name": "a"}, bearer(own_key))).json()["id"]
    await api.emit("drained", "")
    blocks = [await stream.next() for _ in range(2)]
    assert {json.loads(block.data)["data"]["jobId"] for block in blocks if block} == {job_id}


async def permissions_of(api: QueueApi, job_id: str) -> tuple[str | None, tuple[str, ...] | None]:
    """Tenant and tools with which a Sluice worker runs a stored job."""
    pairs = await api.gateway.redis.hgetall(api.keys.job(job_id))
    flat = [part for pair in pairs.items() for part in pair]
    options = LockedJob.from_hash(flat, job_id, "token").options.request.options
    return options.tenant, options.tools


async def test_a_job_carries_the_tenant_and_the_tools_of_its_key(api: QueueApi) -> None:
    two = ("calculator", "files.read")
    cases: tuple[tuple[dict[str, Any], str | None, tuple[str, ...] | None], ...] = (
        ({"tenant": "own"}, "own", None),
        ({"tenant": "other", "tools": two[::-1]}, "other", two),
        ({"tools": ()}, None, ()),
        ({}, None, None),
    )
    for number, (spec, tenant, tools) in enumerate(cases):
        key = await key_for(api.gateway, **spec)
        for opts in ({}, {"jobId": f"mine{number}"}, {"deduplication": {"id": f"d{number}"}}):
            answer = await api.post({"name": "chat", "opts": opts}, bearer(key))
            assert await permissions_of(api, answer.json()["id"]) == (tenant, tools), (spec, opts)
    plain = json.loads((await api.fields(await api.add({"jobId": "plain"})))["opts"])
    assert "sluice" not in plain, "a job without permissions is as BullMQ's own"


async def test_an_operators_job_may_have_an_id_that_looks_like_a_tenants(api: QueueApi) -> None:
    job_id = "0b51e4a8-6f0e-4b4c-9d5e-3413caa70e29"
    assert await api.add({"jobId": job_id}) == job_id
    assert await permissions_of(api, job_id) == (None, None)
    fields = await api.fields(job_id)
    assert json.loads(fields["opts"])["sluice"] == {}
    await api.gateway.redis.hset(api.keys.job(job_id), "opts", "{}")  # as by an older gateway
    assert await permissions_of(api, job_id) == ("?", ())


async def test_limits_of_keys_are_enforced_or_the_key_is_rejected(api: QueueApi) -> None:
    for spec in ({"rate_per_min": 60}, {"max_jobs": 5}):
        key = await key_for(api.gateway, **spec)
        check_problem(await api.post({"name": "a"}, bearer(key)), 403, "key_limited")
    key = await key_for(api.gateway, tasks=("chat",))
    check_problem(await api.post({"name": "render"}, bearer(key)), 403, "task_not_allowed")
    assert await api.gateway.redis.keys("bull:*") == []
    assert (await api.post({"name": "chat"}, bearer(key))).status == 202


INVALID_OPTIONS: dict[str, tuple[Any, ...]] = {
    "priority": (-1, 2_097_152, 1.5, "1"),
    "attempts": (0, True),
    "delay": (-1, 1 << 70),
    "backoff": (
        *(-5, {"type": "linear", "delay": 1}, {"delay": 1}, {"type": "fixed", "delay": -1}),
        {"type": "fixed", "delay": 1, "jitter": 1.1},
        {"type": "fixed", "delay": 1, "jitter": -0.1},
    ),
    "jobId": ("a:b", "123", "٣٤", "", "x" * 129, "a\nb", "a/b", "wait", "meta"),
    "removeOnComplete": (-1, "yes"),
    "removeOnFail": ({"age": -1}, {"years": 1}),
    "deduplication": ({}, {"id": "", "ttl": 1}, {"id": "d", "ttl": -1}),
    "repeat": ({"every": 1000},),
    "parent": ({"id": "1", "queue": "bull:other"},),
    "sluice": ({}, {"tenant": "other"}, {"tools": ["calculator"]}),
}
NO_JOBS: list[Any] = [
    *([], {}, {"data": {}}, {"name": ""}, {"name": "x" * 257}, {"name": 7}, {"name": "a\0"}),
    {"name": "a", "opts": "fast"},
]


async def test_invalid_requests_are_rejected(api: QueueApi) -> None:
    for name, values in INVALID_OPTIONS.items():
        for value in values:
            answer = await api.post({"name": "a", "data": {}, "opts": {name: value}})
            problem = check_problem(answer, 422, "invalid_request")
            pointers = [fault["pointer"] for fault in problem["errors"]]
            assert all(pointer.startswith(f"/opts/{name}") for pointer in pointers), value
    internal = {"name": "tool", "data": {"tool": "workflow.step"}}
    for body in (*NO_JOBS, internal):
        check_problem(await api.post(body), 422, "invalid_request")
    check_problem(await api.post(b"{"), 400, "malformed_json")
    check_problem(await api.post(b"[" * 100 + b"]" * 100), 400, "nested_too_deep")
    answer = await api.post(b"a=1", {"content-type": "application/x-www-form-urlencoded"})
    check_problem(answer, 415, "unsupported_media_type")
    assert await api.gateway.redis.keys("bull:*") == []
    for opts in ({"priority": 2_097_151}, {"priority": 0}, {"delay": 0}, {"attempts": 1}):
        assert (await api.post({"name": "a", "opts": opts})).status == 202


async def test_data_that_is_too_long_is_rejected(make: Make) -> None:
    api = QueueApi(make(bullmq_add_queues="video", max_payload_bytes=100))
    assert (await api.post({"name": "a", "data": {"t": "x" * 90}})).status == 202
    too_long = await api.post({"name": "a", "data": {"t": "x" * 95}})
    check_problem(too_long, 413, "payload_too_large")
    check_problem(await api.post(b'"' + b"x" * 9000 + b'"'), 413, "body_too_large")


async def test_a_queue_that_is_not_configured_is_not_found(api: QueueApi, make: Make) -> None:
    other = QueueApi(api.gateway, "secret")
    client: Client = api.gateway.client
    check_problem(await other.post({"name": "a"}), 404, "queue_not_found")
    check_problem(await other.get("1"), 404, "queue_not_found")
    check_problem(await other.delete("1"), 404, "queue_not_found")
    for suffix in ("/events", "/jobs/1/events"):
        check_problem(await client.get(other.path + suffix), 404, "queue_not_found")
    check_problem(await client.send("PUT", f"{api.path}/jobs/1"), 405)
    check_problem(await QueueApi(make()).post({"name": "a"}), 404, "queue_not_found")


async def test_unknown_and_invalid_job_ids_are_not_found(api: QueueApi) -> None:
    await api.add()
    before = await api.gateway.snapshot()
    for job_id in ("7", "meta", "wait", "events", "x" * 2000, "%F0%9F%8E%AC", "a:lock"):
        check_problem(await api.get(job_id), 404, "job_not_found")
        check_problem(await api.delete(job_id), 404, "job_not_found")
        stream = f"{api.path}/jobs/{job_id}/events"
        check_problem(await api.gateway.client.get(stream), 404, "job_not_found")
    assert await api.gateway.snapshot() == before


async def test_an_invalid_job_hash_is_tolerated(api: QueueApi) -> None:
    odd = {"name": "a", "timestamp": "soon", "data": "{", "opts": "?", "returnvalue": "no json"}
    await api.gateway.redis.hset(api.keys.job("odd"), mapping=odd)
    view = (await api.get("odd")).json()
    assert (view["state"], view["timestamp"], view["progress"]) == ("unknown", 0, 0)
    assert view["data"] == {"_raw": "{"}


async def test_keys_of_another_type_are_reported(api: QueueApi) -> None:
    await api.gateway.redis.set(api.keys.key("id"), "no number")
    check_problem(await api.post({"name": "a"}), 503, "store_corrupt")
    await api.gateway.redis.set(api.keys.key("completed"), "x")
    await api.gateway.redis.hset(api.keys.job("1"), mapping={"name": "a", "timestamp": "1"})
    check_problem(await api.get("1"), 503, "store_corrupt")
    assert json.loads((await api.gateway.client.get("/healthz")).body)
