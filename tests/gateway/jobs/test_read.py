"""`GET /v1/jobs/{id}`: the deserialised job, also of third-party writers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import eventually
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem

FIELDS = [
    *("job_id", "task", "payload", "status", "created_ts", "updated_ts"),
    *("ttl_s", "result", "error"),
]


async def read(gateway: Gateway, job_id: str) -> dict[str, Any]:
    answer = await gateway.client.get(f"/v1/jobs/{job_id}")
    assert answer.status == 200, answer
    assert answer.header("content-type") == "application/json"
    job: dict[str, Any] = answer.json()
    assert list(job) == FIELDS
    return job


async def test_a_new_job_has_all_fields(gateway: Gateway) -> None:
    job_id = await gateway.create({**CHAT, "ttl_s": 60})
    job = await read(gateway, job_id)
    assert type(job["created_ts"]) is int
    assert job == {
        **CHAT,
        "job_id": job_id,
        "status": "queued",
        "created_ts": job["created_ts"],
        "updated_ts": job["created_ts"],
        "ttl_s": 60,
        "result": None,
        "error": None,
    }


async def test_result_and_error_are_deserialised(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stored = {"result": '{"text":"x","n":12345678901234567890123}', "error": '"boom"'}
    await gateway.redis.hset(gateway.keys.job(job_id), mapping=stored)  # type: ignore[misc]
    job = await read(gateway, job_id)
    assert job["result"] == {"text": "x", "n": 12345678901234567890123}
    assert job["error"] == "boom"


async def test_reading_changes_nothing(gateway: Gateway) -> None:
    job_id = await gateway.create()
    before = await gateway.snapshot()
    await read(gateway, job_id)
    assert await gateway.snapshot() == before


DEEP = "[" * 400 + "]" * 400
THIRD_PARTY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "only a status": ({"status": "running"}, {"status": "running", "payload": None, "ttl_s": 0}),
    "unknown fields only": ({"colour": "red"}, {"status": "", "task": ""}),
    "payload no json": ({"payload": "{oops"}, {"payload": {"_raw": "{oops"}}),
    "payload binary": ({"payload": b"\xff\x00"}, {"payload": {"_raw": "\ufffd\x00"}}),
    "payload a list": ({"payload": "[1]"}, {"payload": [1]}),
    "payload null": ({"payload": "null"}, {"payload": None}),
    "result pretty": ({"result": '{\n "a": 1\r\n}'}, {"result": {"a": 1}}),
    "result empty": ({"result": ""}, {"result": None}),
    "result blank": ({"result": " "}, {"result": {"_raw": " "}}),
    "result NaN": ({"result": "NaN"}, {"result": {"_raw": "NaN"}}),
    "result pretty with a big integer": (
        {"payload": '{"a":1}', "result": '{"n":\n12345678901234567890123}'},
        {"payload": {"a": 1}, "result": {"n": 12345678901234567890123}},
    ),
    "result deep": ({"result": DEEP}, {}),
    "result deep and pretty": ({"result": DEEP + "\n"}, {}),
    "result very deep": ({"result": "[" * 5000 + "]" * 5000}, {}),
    "invalid numbers": (
        {"created_ts": "soon", "updated_ts": "", "ttl_s": "1e3"},
        {"created_ts": 0, "updated_ts": 0, "ttl_s": 0},
    ),
    "floats": ({"created_ts": "1760000000000.5"}, {"created_ts": 0}),
    "ts beyond 64 bits": ({"created_ts": "9" * 30, "payload": "{}"}, {"payload": {}}),
    "ts of 10000 digits": ({"created_ts": "9" * 10_000}, {"created_ts": 0}),
    "binary text": ({"task": b"\xff", "status": b"\x80"}, {"task": "\ufffd", "status": "\ufffd"}),
    "lines in text": ({"status": "a\nb"}, {"status": "a\nb"}),
}


@pytest.mark.parametrize(("stored", "expected"), THIRD_PARTY.values(), ids=THIRD_PARTY)
async def test_a_third_party_hash_is_readable(
    fake_gateway: Gateway, stored: dict[str, Any], expected: dict[str, Any]
) -> None:
    mapping: Any = {"job_id": "theirs", **stored}
    await fake_gateway.redis.hset("job:theirs", mapping=mapping)  # type: ignore[misc]
    job = await read(fake_gateway, "theirs")
    assert {**job, **expected} == job


async def test_the_job_id_is_taken_from_the_key(gateway: Gateway) -> None:
    """The key identifies the job; the field only repeats the id."""
    await gateway.redis.hset("job:theirs", "status", "queued")  # type: ignore[misc]
    assert (await read(gateway, "theirs"))["job_id"] == "theirs"


async def test_an_unchanged_job_gets_304(gateway: Gateway) -> None:
    job_id = await gateway.create()
    target = f"/v1/jobs/{job_id}"
    first = await gateway.client.get(target)
    etag = first.header("etag")
    assert etag is not None
    assert etag[0] == etag[-1] == '"'
    for known in (etag, f"W/{etag}", f'"a", {etag}', f'{etag},"b"'):
        same = await gateway.client.get(target, {"if-none-match": known})
        assert (same.status, same.body) == (304, b"")
        assert same.header("etag") == etag
        assert same.header("content-length") is None
    await gateway.finish(job_id)
    changed = await gateway.client.get(target, {"if-none-match": etag})
    assert changed.status == 200
    assert changed.header("etag") != etag


async def test_a_wildcard_etag_matches(fake_gateway: Gateway) -> None:
    """RFC 9110, section 13.1.2: `*` matches whatever exists."""
    job_id = await fake_gateway.create()
    answer = await fake_gateway.client.get(f"/v1/jobs/{job_id}", {"if-none-match": "*"})
    assert answer.status == 304


@pytest.mark.parametrize("known", ["", "x", '"', '"x', "W/", ",,,", "\xff", '"x"' * 5000])
async def test_invalid_etags_match_nothing(fake_gateway: Gateway, known: str) -> None:
    job_id = await fake_gateway.create()
    answer = await fake_gateway.client.get(f"/v1/jobs/{job_id}", {"if-none-match": known})
    assert answer.status == 200


async def test_cache_headers_depend_on_the_status(gateway: Gateway) -> None:
    job_id = await gateway.create()
    running = await gateway.client.get(f"/v1/jobs/{job_id}")
    assert running.header("retry-after") == "1"
    assert running.header("cache-control") == "no-cache"
    await gateway.finish(job_id)
    ended = await gateway.client.get(f"/v1/jobs/{job_id}")
    assert ended.header("retry-after") is None
    assert ended.header("cache-control") == "private, max-age=60"


ODD_IDS = [
    *("no-such-job", "00000000-0000-0000-0000-000000000000", "%F0%9F%98%80", "%00", "%0A", "%20"),
    *("..", "%2e%2e", ".", "x:events", ":events", "x%3Alease", "x" * 500, "x" * 129, "*", "%2A"),
    *("%7Bx%7D", "%3F", "%23", "a%20b", "%ff%fe", "-", "_", "%25", "'", "%22", "<script>", "a\\b"),
]


@pytest.mark.parametrize("suffix", ["", "/events"])
@pytest.mark.parametrize("odd", ODD_IDS, ids=lambda odd: odd[:20])
async def test_unknown_and_invalid_ids_are_not_found(
    gateway: Gateway, odd: str, suffix: str
) -> None:
    await gateway.create()
    await gateway.redis.hset("job:x:lease", "token", "secret")  # type: ignore[misc]
    before = await gateway.snapshot()
    answer = await gateway.client.get(f"/v1/jobs/{odd}{suffix}")
    problem = check_problem(answer, 404)
    assert problem["code"] in ("job_not_found", "not_found")
    assert "secret" not in answer.body.decode()
    assert await gateway.snapshot() == before


@pytest.mark.parametrize("suffix", ["", "/events"])
async def test_a_key_of_another_type_is_not_a_job(gateway: Gateway, suffix: str) -> None:
    await gateway.redis.set("job:x", "hello")
    check_problem(await gateway.client.get(f"/v1/jobs/x{suffix}"), 404, "job_not_found")


async def _gone(gateway: Gateway, job_id: str) -> bool:
    return not await gateway.redis.exists(gateway.keys.job(job_id))


async def test_an_expired_job_is_not_found(make: Make) -> None:
    gateway = make()
    job_id = await gateway.create()
    await gateway.redis.pexpire(gateway.keys.job(job_id), 1)
    await gateway.redis.pexpire(gateway.keys.events(job_id), 1)
    await eventually(lambda: _gone(gateway, job_id))
    check_problem(await gateway.client.get(f"/v1/jobs/{job_id}"), 404, "job_not_found")


async def test_large_payloads_are_returned_unchanged(gateway: Gateway) -> None:
    payload = {"text": "é" * 90_000}
    body = json.dumps({"task": "chat", "payload": payload}, ensure_ascii=False).encode()
    job_id = await gateway.create(body)
    assert (await read(gateway, job_id))["payload"] == payload
