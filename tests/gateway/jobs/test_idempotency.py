"""`Idempotency-Key`: repeated requests create one job."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import CHAT, Gateway, Make, check_problem

KEYED = {"idempotency-key": "order-1"}


async def test_a_repeated_request_gets_the_same_response(gateway: Gateway) -> None:
    first = await gateway.client.post(CHAT, KEYED)
    before = await gateway.snapshot()
    again = await gateway.client.post(CHAT, KEYED)
    assert (again.status, again.body) == (first.status, first.body)
    assert again.header("location") == first.header("location")
    assert first.header("idempotency-replayed") is None
    assert first.header("idempotent-replayed") is None
    assert again.header("idempotency-replayed") == "true"
    assert again.header("idempotent-replayed") == "true", "the earlier spelling"
    assert await gateway.snapshot() == before


async def test_the_key_maps_to_the_job_with_a_ttl(make: Make) -> None:
    gateway = make(idempotency_ttl_s=500, job_ttl_s=100)
    job_id = await gateway.create(idempotency_key="order-1")
    assert await gateway.redis.get("idempotency:order-1") == job_id.encode()
    assert 499_000 < await gateway.redis.pttl("idempotency:order-1") <= 500_000
    keys = {key.decode() for key in await gateway.redis.keys("idempotency*")}
    for key in keys:
        assert await gateway.redis.ttl(key) > 0


async def test_a_key_lives_at_least_as_long_as_its_job(fake_make: Make) -> None:
    gateway = fake_make(idempotency_ttl_s=5)
    await gateway.create({**CHAT, "ttl_s": 900}, idempotency_key="k")
    assert await gateway.redis.ttl("idempotency:k") > 890


async def test_member_order_and_whitespace_do_not_matter(fake_gateway: Gateway) -> None:
    one = b'{"task":"chat","payload":{"a":1,"b":{"c":2,"d":3}}}'
    other = b'{ "payload" : {"b":{"d":3,"c":2}, "a":1}, "task":"chat" }'
    first = await fake_gateway.client.post(one, KEYED)
    again = await fake_gateway.client.post(other, KEYED)
    assert again.header("idempotent-replayed") == "true"
    assert again.body == first.body


@pytest.mark.parametrize(
    "other",
    [
        {"task": "plan", "payload": {"text": "hello"}},
        {"task": "chat", "payload": {"text": "hello!"}},
        {"task": "chat", "payload": {"text": "hello"}, "ttl_s": 60},
        {"task": "chat", "payload": {"text": 10**30}},
    ],
)
async def test_another_request_with_the_same_key_is_rejected(
    gateway: Gateway, other: object
) -> None:
    await gateway.create(idempotency_key="order-1")
    before = await gateway.snapshot()
    check_problem(await gateway.client.post(other, KEYED), 422, "idempotency_key_reused")
    assert await gateway.snapshot() == before


async def test_big_integers_are_compared_exactly(fake_gateway: Gateway) -> None:
    await fake_gateway.create({"task": "chat", "payload": {"n": 10**30}}, idempotency_key="k")
    answer = await fake_gateway.client.post(
        {"task": "chat", "payload": {"n": 10**30 + 1}}, {"idempotency-key": "k"}
    )
    check_problem(answer, 422, "idempotency_key_reused")


async def test_fifty_concurrent_requests_create_one_job(gateway: Gateway) -> None:
    answers = await asyncio.gather(*(gateway.client.post(CHAT, KEYED) for _ in range(50)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body for answer in answers}) == 1
    assert sum(answer.header("idempotent-replayed") is None for answer in answers) == 1
    assert await gateway.redis.xlen(gateway.keys.queue) == 1
    assert len(await gateway.redis.keys("job:*")) == 2


async def test_fifty_requests_with_two_bodies_create_one_job(gateway: Gateway) -> None:
    bodies = [{"task": "chat", "payload": {"n": n % 2}} for n in range(50)]
    answers = await asyncio.gather(*(gateway.client.post(body, KEYED) for body in bodies))
    assert sorted(answer.status for answer in answers) == [202] * 25 + [422] * 25
    assert await gateway.redis.xlen(gateway.keys.queue) == 1


async def test_a_quoted_key_is_the_same_key(gateway: Gateway) -> None:
    first = await gateway.client.post(CHAT, {"idempotency-key": '"order-1"'})
    again = await gateway.client.post(CHAT, KEYED)
    assert again.body == first.body
    assert await gateway.redis.exists("idempotency:order-1")


@pytest.mark.parametrize(
    "key",
    [
        *("a", "x" * 255, "a b", "*", "?", "[x]", "{x}", "a:b:c", "..", "%00", "\\", "'", "~"),
        *(":events", "job:x", "$JOB_STATUS", "<>&=;,", '"', 'a"b'),
    ],
)
async def test_unusual_valid_keys_are_accepted(gateway: Gateway, key: str) -> None:
    first = await gateway.client.post(CHAT, {"idempotency-key": key})
    assert first.status == 202
    assert await gateway.redis.get(f"idempotency:{key}") == first.json()["job_id"].encode()
    again = await gateway.client.post(CHAT, {"idempotency-key": key})
    assert again.body == first.body
    assert again.header("idempotent-replayed") == "true"


@pytest.mark.parametrize(
    "key", ["", '""', " ", "x" * 256, "ä", "a\tb", " a", "a ", "\x00", "a\x7f", '"a\nb"']
)
async def test_invalid_keys_are_rejected(fake_gateway: Gateway, key: str) -> None:
    answer = await fake_gateway.client.post(CHAT, {"idempotency-key": key})
    check_problem(answer, 400, "invalid_idempotency_key")
    assert await fake_gateway.redis.dbsize() == 0


async def test_a_rejected_request_does_not_use_its_key(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    check_problem(await gateway.client.post({"task": "x", "payload": {}}, KEYED), 422)
    await gateway.create()
    check_problem(await gateway.client.post(CHAT, KEYED), 429)
    assert not await gateway.redis.exists("idempotency:order-1")
    await gateway.redis.delete(gateway.keys.queue)
    answer = await gateway.client.post(CHAT, KEYED)
    assert answer.status == 202
    assert answer.header("idempotent-replayed") is None


async def test_a_replay_is_answered_when_the_queue_is_full(make: Make) -> None:
    gateway = make(backpressure_max_backlog=1)
    first = await gateway.client.post(CHAT, KEYED)
    assert (await gateway.client.post(CHAT, KEYED)).body == first.body


async def test_a_key_stored_by_a_third_party_gateway_is_used(gateway: Gateway) -> None:
    """It maps to a job id, and there is no fingerprint."""
    await gateway.redis.set("idempotency:order-1", "their-job", ex=60)
    answer = await gateway.client.post(CHAT, KEYED)
    assert (answer.status, answer.json()) == (202, {"job_id": "their-job"})
    assert answer.header("idempotent-replayed") == "true"


@pytest.mark.parametrize("junk", [b'a"b\\', b"\xff\xfe", b"x\r\nSet-Cookie: a=b", b""])
async def test_an_invalid_stored_value_is_tolerated(fake_gateway: Gateway, junk: bytes) -> None:
    """Never a 500, never invalid JSON, never a forged header."""
    await fake_gateway.redis.set("idempotency:order-1", junk)
    answer = await fake_gateway.client.post(CHAT, KEYED)
    assert answer.status in (202, 409, 422, 503)
    assert answer.json()


async def test_a_key_of_another_type_is_reported(fake_gateway: Gateway) -> None:
    await fake_gateway.redis.lpush("idempotency:order-1", "x")  # type: ignore[misc]
    before = await fake_gateway.snapshot()
    check_problem(await fake_gateway.client.post(CHAT, KEYED), 503, "store_corrupt")
    assert await fake_gateway.snapshot() == before
