"""`POST /v1/jobs`: the exact response and the exact keys."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.common.kit import shared_keys
from tests.gateway.conftest import CHAT, Gateway, Make


async def test_the_response_follows_the_contract(gateway: Gateway) -> None:
    answer = await gateway.client.post(CHAT)
    assert answer.status == 202
    assert answer.header("content-type") == "application/json"
    body = answer.json()
    assert list(body) == ["job_id"]
    assert str(uuid.UUID(body["job_id"])) == body["job_id"]
    location = f"/v1/jobs/{body['job_id']}"
    assert answer.header("location") == location
    assert answer.header("link") == f'<{location}/events>; rel="monitor"'
    assert answer.header("idempotent-replayed") is None
    assert answer.header("preference-applied") is None


async def test_hash_event_and_queue_entry_are_exact(gateway: Gateway) -> None:
    redis, keys = gateway.redis, gateway.keys
    seconds, micros = await redis.time()
    before_ms = seconds * 1000 + micros // 1000
    job_id = await gateway.create({"task": "plan", "payload": {"b": [1, None], "a": "é"}})
    seconds, micros = await redis.time()
    after_ms = seconds * 1000 + micros // 1000

    job = await redis.hgetall(keys.job(job_id))
    created = int(job[b"created_ts"])
    assert before_ms <= created <= after_ms
    payload = '{"b":[1,null],"a":"é"}'.encode()
    assert job == {
        b"job_id": job_id.encode(),
        b"task": b"plan",
        b"payload": payload,
        b"status": b"queued",
        b"created_ts": b"%d" % created,
        b"updated_ts": b"%d" % created,
        b"ttl_s": b"86400",
        b"result": b"",
        b"error": b"",
    }
    [(_, event)] = await redis.xrange(keys.events(job_id))
    assert event == {
        b"type": b"queued",
        b"ts": b"%d" % created,
        b"step": b"gateway.enqueue",
        b"data": b"{}",
    }
    [(_, message)] = await redis.xrange(keys.queue)
    assert message == {b"job_id": job_id.encode(), b"task": b"plan", b"payload": payload}
    assert sorted(await redis.keys("*")) == sorted(
        key.encode()
        for key in (keys.job(job_id), keys.events(job_id), keys.queue, *shared_keys(keys))
    )
    assert await redis.ttl(keys.queue) == -1


@pytest.mark.parametrize("ttl_s", [None, 1, 3600, 30 * 24 * 3600])
async def test_the_ttl_has_a_default_and_bounds(fake_make: Make, ttl_s: int | None) -> None:
    gateway = fake_make(job_ttl_s=777)
    body = CHAT if ttl_s is None else {**CHAT, "ttl_s": ttl_s}
    job_id = await gateway.create(body)
    expected = 777 if ttl_s is None else ttl_s
    keys = gateway.keys
    assert await gateway.redis.hget(keys.job(job_id), "ttl_s") == b"%d" % expected
    for key in (keys.job(job_id), keys.events(job_id)):
        assert expected * 1000 - 1000 < await gateway.redis.pttl(key) <= expected * 1000


@pytest.mark.parametrize("task", ["chat", "plan", "code", "tool", "rag", "embed"])
async def test_every_task_of_the_contract_is_accepted(fake_gateway: Gateway, task: str) -> None:
    job_id = await fake_gateway.create({"task": task, "payload": {}})
    [(_, message)] = await fake_gateway.redis.xrange(fake_gateway.keys.queue)
    assert message[b"task"] == task.encode()
    assert message[b"job_id"] == job_id.encode()


async def test_the_queue_key_is_a_setting(make: Make) -> None:
    gateway = make(queue_stream_key="other:queue")
    await gateway.create()
    assert await gateway.redis.xlen("other:queue") == 1
    assert not await gateway.redis.exists("jobs:stream")


PAYLOADS: list[Any] = [
    {},
    {"": ""},
    {"n": 2**63},
    {"n": -(2**63)},
    {"n": -(2**63) - 1},
    {"n": 2**64},
    {"n": 10**40, "deep": [{"m": -(10**300)}]},
    {"f": [0.1, 1e-300, 1.7976931348623157e308, 5e-324, 123456789.123456789]},
    {"nul": "\u0000", "astral": "😀", "line": "\u2028\r\n", "quote": '"\\/'},
    {"\u0000 odd key": True, "ключ": False, "a.b:c": None},
    {"digits in a string": "12345678901234567890123"},
    {"list": list(range(5000))},
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda p: repr(p)[:30])
async def test_payloads_are_returned_unchanged(fake_gateway: Gateway, payload: Any) -> None:
    job_id = await fake_gateway.create({"task": "chat", "payload": payload})
    [(_, message)] = await fake_gateway.redis.xrange(fake_gateway.keys.queue)
    assert json.loads(message[b"payload"]) == payload
    answer = await fake_gateway.client.get(f"/v1/jobs/{job_id}")
    assert answer.status == 200
    assert answer.json()["payload"] == payload
    assert [type(v) for v in answer.json()["payload"].values()] == [
        type(v) for v in payload.values()
    ]


async def test_a_payload_of_exactly_the_limit_is_accepted(gateway: Gateway) -> None:
    payload = {"t": "x" * (200_000 - len('{"t":""}'))}
    job_id = await gateway.create({"task": "chat", "payload": payload})
    assert await gateway.redis.hstrlen(gateway.keys.job(job_id), "payload") == 200_000


async def test_whitespace_does_not_count_as_payload(fake_make: Make) -> None:
    gateway = fake_make(max_payload_bytes=12)
    body = b'{"task":"chat","payload":{\n  "a"  :  "xyz"\n  }\n}'
    assert (await gateway.client.post(body)).status == 202


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=utf-8", "application/vnd.sluice+json"],
)
async def test_every_json_content_type_is_accepted(
    fake_gateway: Gateway, content_type: str
) -> None:
    answer = await fake_gateway.client.post(CHAT, {"content-type": content_type})
    assert answer.status == 202


@pytest.mark.parametrize("given", ["abc", "A-1_2.3:4", "x" * 128])
async def test_a_valid_request_id_is_echoed(fake_gateway: Gateway, given: str) -> None:
    for answer in (
        await fake_gateway.client.post(CHAT, {"x-request-id": given}),
        await fake_gateway.client.get("/v1/jobs/none", {"x-request-id": given}),
        await fake_gateway.client.get("/healthz", {"x-request-id": given}),
    ):
        assert answer.header("x-request-id") == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "ä", "a\tb", '<script>"'])
async def test_an_invalid_request_id_is_replaced(fake_gateway: Gateway, given: str | None) -> None:
    headers = {} if given is None else {"x-request-id": given}
    first = await fake_gateway.client.post(CHAT, headers)
    second = await fake_gateway.client.post(CHAT, headers)
    ids = {first.header("x-request-id"), second.header("x-request-id")}
    assert len(ids) == 2
    assert all(request_id is not None and len(request_id) == 32 for request_id in ids)


async def test_of_duplicate_members_the_last_one_counts(fake_gateway: Gateway) -> None:
    """As in common JSON parsers; the stored payload has no duplicates."""
    body = b'{"task":"chat","task":"plan","payload":{"a":1,"a":12345678901234567890123}}'
    job_id = await fake_gateway.create(body)
    job = await fake_gateway.redis.hgetall(fake_gateway.keys.job(job_id))
    assert job[b"task"] == b"plan"
    assert job[b"payload"] == b'{"a":12345678901234567890123}'
