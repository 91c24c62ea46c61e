"""`GET /v1/jobs/{id}`: the deserialised job, also of third-party writers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gateway.harness import CHAT, Gateway, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

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


@partitioned
async def test_a_job_has_all_fields(gateway: Gateway) -> None:
    job_id = await gateway.create({**CHAT, "ttl_s": 60})
    key = gateway.keys_of(job_id).job(job_id)
    before = await gateway.snapshot()
    job = await read(gateway, job_id)
    assert await gateway.snapshot() == before
    assert type(job["created_ts"]) is int
    expected = {
        **CHAT,
        "job_id": job_id,
        "status": "queued",
        "created_ts": job["created_ts"],
        "updated_ts": job["created_ts"],
        "ttl_s": 60,
        "result": None,
        "error": None,
    }
    assert job == expected
    stored = {"result": '{"text":"x","n":12345678901234567890123}', "error": '"boom"'}
    await gateway.redis.hset(key, mapping=stored)  # type: ignore[misc]
    result = {"text": "x", "n": 12345678901234567890123}
    assert await read(gateway, job_id) == {**expected, "result": result, "error": "boom"}
    await gateway.redis.delete(key)
    check_problem(await gateway.client.get(f"/v1/jobs/{job_id}"), 404, "job_not_found")


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


async def test_a_third_party_hash_is_readable(gateway: Gateway) -> None:
    """The key identifies the job; the field `job_id` only repeats the id."""
    for name, (stored, expected) in THIRD_PARTY.items():
        await gateway.redis.delete("job:theirs")
        await gateway.redis.hset("job:theirs", mapping=stored)  # type: ignore[misc]
        job = await read(gateway, "theirs")
        assert {**job, "job_id": "theirs", **expected} == job, name


async def test_an_unchanged_job_gets_304(gateway: Gateway) -> None:
    job_id = await gateway.create()
    target = f"/v1/jobs/{job_id}"
    first = await gateway.client.get(target)
    assert (first.header("retry-after"), first.header("cache-control")) == ("1", "no-cache")
    etag = first.header("etag")
    assert etag is not None
    assert etag[0] == etag[-1] == '"'
    for known in (etag, f"W/{etag}", f'"a", {etag}', f'{etag},"b"', "*"):
        same = await gateway.client.get(target, {"if-none-match": known})
        assert (same.status, same.body) == (304, b"")
        assert same.header("etag") == etag
        assert same.header("content-length") is None
    for other in ("", "x", '"', '"x', "W/", ",,,", "\xff", '"x"' * 5000):
        assert (await gateway.client.get(target, {"if-none-match": other})).status == 200
    await gateway.finish(job_id)
    changed = await gateway.client.get(target, {"if-none-match": etag})
    assert changed.status == 200
    assert changed.header("etag") != etag
    assert changed.header("retry-after") is None
    assert changed.header("cache-control") == "private, max-age=60"


ODD_IDS = [
    *("no-such-job", "00000000-0000-0000-0000-000000000000", "%F0%9F%98%80", "%00", "%0A", "%20"),
    *("..", "%2e%2e", ".", "x:events", ":events", "x%3Alease", "x" * 500, "x" * 129, "*", "%2A"),
    *("%7Bx%7D", "%3F", "%23", "a%20b", "%ff%fe", "-", "_", "%25", "'", "%22", "<script>", "a\\b"),
]


async def test_unknown_and_invalid_ids_are_not_found(gateway: Gateway) -> None:
    await gateway.create()
    await gateway.redis.hset("job:x:lease", "token", "secret")  # type: ignore[misc]
    await gateway.redis.set("job:text", "not a hash")
    before = await gateway.snapshot()
    for odd in (*ODD_IDS, "text"):
        for suffix in ("", "/events"):
            answer = await gateway.client.get(f"/v1/jobs/{odd}{suffix}")
            problem = check_problem(answer, 404)
            assert problem["code"] in ("job_not_found", "not_found"), odd
            assert "secret" not in answer.body.decode()
    assert await gateway.snapshot() == before
