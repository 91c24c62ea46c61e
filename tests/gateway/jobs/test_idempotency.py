"""`Idempotency-Key`: repeated requests create one job."""

from __future__ import annotations

import pytest

from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

KEYED = {"idempotency-key": "order-1"}


@partitioned
async def test_a_repeated_request_gets_the_same_response(gateway: Gateway) -> None:
    """The order of members and whitespace do not matter."""
    body = b'{"task":"chat","payload":{"a":1,"b":{"c":2,"d":3}}}'
    same = b'{ "payload" : {"b":{"d":3,"c":2}, "a":1}, "task":"chat" }'
    first = await gateway.client.post(body, KEYED)
    before = await gateway.snapshot()
    for again in (await gateway.client.post(body, KEYED), await gateway.client.post(same, KEYED)):
        assert (again.status, again.body) == (first.status, first.body)
        assert again.header("location") == first.header("location")
        assert again.header("idempotency-replayed") == "true"
        assert again.header("idempotent-replayed") == "true", "the earlier spelling"
    assert first.header("idempotency-replayed") is None
    assert first.header("idempotent-replayed") is None
    assert await gateway.snapshot() == before


async def test_the_key_maps_to_the_job_with_a_ttl(make: Make) -> None:
    gateway = make(idempotency_ttl_s=500, job_ttl_s=100)
    job_id = await gateway.create(idempotency_key="order-1")
    assert await gateway.redis.get("idempotency:order-1") == job_id.encode()
    assert 499_000 < await gateway.redis.pttl("idempotency:order-1") <= 500_000
    await gateway.create({**CHAT, "ttl_s": 900}, idempotency_key="k")
    assert await gateway.redis.ttl("idempotency:k") > 890, "at least as long as its job"
    for key in await gateway.redis.keys("idempotency*"):
        assert await gateway.redis.ttl(key) > 0


async def test_another_request_with_the_same_key_is_rejected(gateway: Gateway) -> None:
    await gateway.create({"task": "chat", "payload": {"n": 10**30}}, idempotency_key="order-1")
    before = await gateway.snapshot()
    for other in (
        {"task": "plan", "payload": {"n": 10**30}},
        {"task": "chat", "payload": {"n": 10**30 + 1}},
        {"task": "chat", "payload": {"n": 10**30}, "ttl_s": 60},
    ):
        check_problem(await gateway.client.post(other, KEYED), 422, "idempotency_key_reused")
    assert await gateway.snapshot() == before


async def test_unusual_valid_keys_are_accepted(gateway: Gateway) -> None:
    for key in (
        *("a", "x" * 255, "a b", "*", "?", "[x]", "{x}", "a:b:c", "..", "%00", "\\", "'", "~"),
        *(":events", "job:x", "$JOB_STATUS", "<>&=;,", '"', 'a"b'),
    ):
        first = await gateway.client.post(CHAT, {"idempotency-key": key})
        assert await gateway.redis.get(f"idempotency:{key}") == first.json()["job_id"].encode()
        quoted = key if '"' in key else f'"{key}"'
        for same in (key, quoted):
            again = await gateway.client.post(CHAT, {"idempotency-key": same})
            assert (again.status, again.body) == (202, first.body)
            assert again.header("idempotent-replayed") == "true"


@pytest.mark.parametrize(
    "key", ["", '""', " ", "x" * 256, "ä", "a\tb", " a", "a ", "\x00", "a\x7f", '"a\nb"']
)
async def test_invalid_keys_are_rejected(gateway: Gateway, key: str) -> None:
    answer = await gateway.client.post(CHAT, {"idempotency-key": key})
    check_problem(answer, 400, "invalid_idempotency_key")
    assert await gateway.redis.dbsize() == 0


async def test_a_rejected_request_does_not_use_its_key(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    check_problem(await gateway.client.post({"task": "x", "payload": {}}, KEYED), 422)
    first = await gateway.client.post(CHAT, {"idempotency-key": "first"})
    check_problem(await gateway.client.post(CHAT, KEYED), 429)
    assert not await gateway.redis.exists("idempotency:order-1")
    again = await gateway.client.post(CHAT, {"idempotency-key": "first"})
    assert again.body == first.body, "a replay is answered when the queue is full"
    await gateway.redis.delete(gateway.keys.queue)
    answer = await gateway.client.post(CHAT, KEYED)
    assert (answer.status, answer.header("idempotent-replayed")) == (202, None)


@pytest.mark.parametrize(
    "junk", [b'a"b\\', b"\xff\xfe", b"x\r\nSet-Cookie: a=b", b"", b"their-job"]
)
async def test_a_third_party_value_is_used_or_tolerated(gateway: Gateway, junk: bytes) -> None:
    """It has no fingerprint. Never a 500, never invalid JSON, never a forged header."""
    await gateway.redis.set("idempotency:order-1", junk)
    answer = await gateway.client.post(CHAT, KEYED)
    assert answer.status in (202, 409, 422, 503)
    assert answer.json()
    if junk == b"their-job":
        assert (answer.status, answer.json()) == (202, {"job_id": "their-job"})
        assert answer.header("idempotent-replayed") == "true"


async def test_a_key_of_another_type_is_reported(gateway: Gateway) -> None:
    await gateway.redis.lpush("idempotency:order-1", "x")  # type: ignore[misc]
    before = await gateway.snapshot()
    check_problem(await gateway.client.post(CHAT, KEYED), 503, "store_corrupt")
    assert await gateway.snapshot() == before
