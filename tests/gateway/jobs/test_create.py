"""`POST /v1/jobs`: the exact response and the exact keys."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.support.gateway.harness import CHAT, Gateway, Make

pytestmark = pytest.mark.fakeredis_only

MOST = {"ttl_s": 30 * 24 * 3600}


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


async def test_the_ttl_has_a_default_and_bounds(make: Make) -> None:
    gateway = make(job_ttl_s=777)
    keys = gateway.keys
    for given, expected in ({}, 777), ({"ttl_s": None}, 777), ({"ttl_s": 1}, 1), (MOST, 2_592_000):
        job_id = await gateway.create({**CHAT, **given})
        assert await gateway.redis.hget(keys.job(job_id), "ttl_s") == b"%d" % expected
        for key in (keys.job(job_id), keys.events(job_id)):
            assert expected * 1000 - 1000 < await gateway.redis.pttl(key) <= expected * 1000


async def test_every_task_of_the_contract_is_accepted(make: Make) -> None:
    gateway = make(queue_stream_key="other:queue")
    for task in ("chat", "plan", "code", "tool", "rag", "embed"):
        job_id = await gateway.create({"task": task, "payload": {"b": [1, None], "a": "é"}})
        [(_, message)] = await gateway.redis.xrevrange("other:queue", count=1)
        assert (message[b"task"], message[b"job_id"]) == (task.encode(), job_id.encode())
        assert message[b"payload"] == '{"b":[1,null],"a":"é"}'.encode()
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
    {"text": "é" * 90_000},
]


async def test_payloads_are_returned_unchanged(gateway: Gateway) -> None:
    for payload in PAYLOADS:
        body = json.dumps({"task": "chat", "payload": payload}, ensure_ascii=False).encode()
        job_id = await gateway.create(body)
        [(_, message)] = await gateway.redis.xrevrange(gateway.keys.queue, count=1)
        assert json.loads(message[b"payload"]) == payload
        found = (await gateway.client.get(f"/v1/jobs/{job_id}")).json()["payload"]
        assert found == payload
        assert [type(v) for v in found.values()] == [type(v) for v in payload.values()]


async def test_of_duplicate_members_the_last_one_counts(gateway: Gateway) -> None:
    """As in common JSON parsers; the stored payload has no duplicates."""
    body = b'{"task":"chat","task":"plan","payload":{"a":1,"a":12345678901234567890123}}'
    job_id = await gateway.create(body)
    job = await gateway.redis.hgetall(gateway.keys.job(job_id))
    assert job[b"task"] == b"plan"
    assert job[b"payload"] == b'{"a":12345678901234567890123}'


async def test_only_a_valid_request_id_is_echoed(gateway: Gateway) -> None:
    for given in ("abc", "A-1_2.3:4", "x" * 128):
        headers = {"x-request-id": given}
        for answer in (
            await gateway.client.post(CHAT, headers),
            await gateway.client.get("/v1/jobs/none", headers),
            await gateway.client.get("/healthz", headers),
        ):
            assert answer.header("x-request-id") == given
    for invalid in (None, "", "a b", "x" * 129, "ä", "a\tb", '<script>"'):
        headers = {} if invalid is None else {"x-request-id": invalid}
        answers = [await gateway.client.post(CHAT, headers) for _ in range(2)]
        ids = {answer.header("x-request-id") or "" for answer in answers}
        assert [len(request_id) for request_id in ids] == [32, 32], invalid
