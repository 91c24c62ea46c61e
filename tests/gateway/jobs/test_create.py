"""`POST /v1/jobs`: response, keys, options, and repeated requests with an `Idempotency-Key`."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.options import Backoff, JobOptions
from sluice.common.jobs.store import Claim, WorkerIdentity
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

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
    # Of duplicate members the last one counts, as in common JSON parsers.
    body = b'{"task":"chat","task":"plan","payload":{"a":1,"a":12345678901234567890123}}'
    job = await gateway.redis.hgetall(gateway.keys.job(await gateway.create(body)))
    assert (job[b"task"], job[b"payload"]) == (b"plan", b'{"a":12345678901234567890123}')


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
    delayed = {**CHAT, "delay_s": 60.2, "ttl_s": 600}
    job_id = await gateway.create(delayed, idempotency_key="later")
    assert 655 < await gateway.redis.ttl("idempotency:later") <= 661
    assert await gateway.redis.pttl("idempotency:later") >= await gateway.redis.pttl(
        f"job:{job_id}"
    )
    for key in await gateway.redis.keys("idempotency*"):
        assert await gateway.redis.ttl(key) > 0


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


async def test_invalid_keys_are_rejected(gateway: Gateway) -> None:
    for key in ("", '""', " ", "x" * 256, "ä", "a\tb", " a", "a ", "\x00", "a\x7f", '"a\nb"'):
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


async def test_a_third_party_value_is_used_or_tolerated(gateway: Gateway) -> None:
    """It has no fingerprint. Never a 500, never invalid JSON, never a forged header."""
    for junk in (b'a"b\\', b"\xff\xfe", b"x\r\nSet-Cookie: a=b", b""):
        await gateway.redis.set("idempotency:order-1", junk)
        answer = await gateway.client.post(CHAT, KEYED)
        assert answer.status in (202, 409, 422, 503)
        assert answer.json()
    await gateway.redis.set("idempotency:order-1", b"their-job")
    answer = await gateway.client.post(CHAT, KEYED)
    assert (answer.status, answer.json()) == (202, {"job_id": "their-job"})
    assert answer.header("idempotent-replayed") == "true"
    await gateway.redis.delete("idempotency:order-1")
    await gateway.redis.lpush("idempotency:order-1", "x")
    before = await gateway.snapshot()
    check_problem(await gateway.client.post(CHAT, KEYED), 503, "store_corrupt")
    assert await gateway.snapshot() == before


DAYS_30 = 30 * 24 * 3600


INVALID_VALUES: dict[str, tuple[Any, ...]] = {
    "timeout_s": (0, -1.5, DAYS_30 + 1, True, "5", [5], 10**300),
    "max_attempts": (0, -1, 1001, 10**40, 3.0, True, "3"),
    "backoff": (5, [], "{}"),
    "backoff/initial": (1,),
    "backoff/initial_s": (-0.1, 3600.5, None),
    "backoff/factor": (0.99, 101, True),
    "backoff/max_s": (-1, 86401),
    "backoff/jitter": (-0.5, 1.01, "0.5"),
    "delay_s": (-1, DAYS_30 + 0.1, True, "5", 10**300),
    "run_at": (
        *(1760000000, "1760000000", True, "", "2026-01-01T00:00:00", "2026-01-01"),
        *("2026-01-01T00:00Z", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z"),
        *("2026-01-01T00:00:00+24:00", "0000-01-01T00:00:00Z", " 2026-01-01T00:00:00Z"),
        *("2026-01-01T00:00:00Z\n", "٢٠٢٦-01-01T00:00:00Z", "2999-01-01T00:00:00Z"),
        "9999-12-31T23:59:59-23:59",
    ),
}


def chat_with(**changes: Any) -> bytes:
    return json.dumps({**CHAT, **changes}).encode()


def body_with(pointer: str, value: Any) -> bytes:
    member, _, part = pointer.partition("/")
    return chat_with(**{member: {part: value} if part else value})


NEW_YEAR = "2026-01-01T00:00:00Z"
#: Body and pointers by name. Also parsed by FastAPI with the same model; see test_openapi.
INVALID_OPTIONS: dict[str, tuple[bytes, list[str]]] = {
    **{
        f"{pointer} {number}": (body_with(pointer, value), [f"/{pointer}"])
        for pointer, values in INVALID_VALUES.items()
        for number, value in enumerate(values)
    },
    "two faults": (
        chat_with(backoff={"jitter": 2, "factor": 0}),
        ["/backoff/factor", "/backoff/jitter"],
    ),
    "delay and run_at": (chat_with(delay_s=5, run_at=NEW_YEAR), ["/run_at"]),
    "delay 0 and run_at": (chat_with(delay_s=0, run_at=NEW_YEAR), ["/run_at"]),
    "bad delay and run_at": (chat_with(delay_s=-5, run_at=NEW_YEAR), ["/delay_s"]),
}


async def test_invalid_options_are_rejected(gateway: Gateway) -> None:
    for name, (body, pointers) in INVALID_OPTIONS.items():
        answer = await gateway.client.post(body, {"idempotency-key": "k"})
        problem = check_problem(answer, 422, "invalid_request")
        assert [fault["pointer"] for fault in problem["errors"]] == pointers, name
    for field in (b"timeout_s", b"delay_s", b"max_attempts"):
        for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
            body = b'{"task":"chat","payload":{},"%b":%b}' % (field, word)
            check_problem(await gateway.client.post(body), 400, "malformed_json")
    assert await gateway.redis.dbsize() == 0


GIVEN: list[tuple[dict[str, Any], JobOptions]] = [
    ({"timeout_s": 1}, JobOptions(timeout_s=1.0)),
    ({"timeout_s": DAYS_30}, JobOptions(timeout_s=float(DAYS_30))),
    ({"timeout_s": 0.001}, JobOptions(timeout_s=0.001)),
    ({"backoff": {}}, JobOptions(backoff=Backoff())),
    (
        {"backoff": {"initial_s": 0, "factor": 1, "max_s": 0, "jitter": 1}},
        JobOptions(backoff=Backoff(0.0, 1.0, 0.0, 1.0)),
    ),
    (
        {"backoff": {"initial_s": 3600, "factor": 100, "max_s": 86400}},
        JobOptions(backoff=Backoff(3600.0, 100.0, 86400.0)),
    ),
    ({"max_attempts": 1000, "timeout_s": None, "backoff": None}, JobOptions()),
]


async def test_a_worker_gets_the_options(gateway: Gateway) -> None:
    worker = WorkerIdentity("workers", "c1", 30_000, 600)
    for given, parsed in GIVEN:
        job_id = await gateway.create({**CHAT, **given})
        [(message_id, _)] = await gateway.redis.xrevrange(gateway.keys.queue, count=1)
        claim = Claim(job_id, message_id.decode(), "token")
        [reply] = await gateway.state.store.begin([claim], worker)
        assert not isinstance(reply, Exception)
        assert reply.answer is Answer.RUN
        most, _, options = reply.more
        assert most == (b"1000" if "max_attempts" in given else b"")
        assert (JobOptions.from_json(options) if options else JobOptions()) == parsed


PAST = "2020-01-01T00:00:00Z"


async def test_equivalent_options_are_the_same_request(gateway: Gateway) -> None:
    nothing = dict.fromkeys(("timeout_s", "max_attempts", "backoff", "delay_s", "run_at"))
    for number, (one, same) in enumerate(
        (
            ({}, nothing),
            ({"timeout_s": 5}, {"timeout_s": 5.0}),
            ({"backoff": {}}, {"backoff": {"factor": 2, "initial_s": 1}}),
            ({"run_at": PAST}, {"run_at": "2020-01-01t01:00:00.000+01:00"}),
            ({"delay_s": 60}, {"delay_s": 6e1}),
        )
    ):
        keyed = {"idempotency-key": f"k{number}"}
        first = await gateway.client.post({**CHAT, **one}, keyed)
        again = await gateway.client.post({**CHAT, **same}, keyed)
        assert (first.status, again.status, again.body) == (202, 202, first.body)
        assert again.header("idempotent-replayed") == "true"


async def test_another_request_with_the_same_key_is_rejected(gateway: Gateway) -> None:
    first = {"task": "chat", "payload": {"n": 10**30}}
    await gateway.create(first, idempotency_key="k")
    before = await gateway.snapshot()
    for other in (
        *({"task": "plan"}, {"payload": {"n": 10**30 + 1}}, {"payload": {"n": 10**30, "a": None}}),
        *({"ttl_s": 60}, {"timeout_s": 6}, {"max_attempts": 2}, {"backoff": {}}),
        *({"delay_s": 0}, {"run_at": PAST}),
    ):
        answer = await gateway.client.post({**first, **other}, {"idempotency-key": "k"})
        check_problem(answer, 422, "idempotency_key_reused")
    assert await gateway.snapshot() == before
