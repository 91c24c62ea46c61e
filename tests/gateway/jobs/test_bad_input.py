"""Invalid input gets a clear 4xx problem; jobs of third-party writers can be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway.asgi import Answer, Exchange
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

GOOD = json.dumps(CHAT).encode()


def nested(levels: int, core: str = "1") -> bytes:
    """A body with `levels` nested objects and arrays in total."""
    arrays = levels - 2
    text = "[" * arrays + core + "]" * arrays
    return b'{"task":"chat","payload":{"deep":%b}}' % text.encode()


def chat(**changes: Any) -> bytes:
    return json.dumps({**CHAT, **changes}).encode()


def without(field: str) -> bytes:
    return json.dumps({k: v for k, v in CHAT.items() if k != field}).encode()


MALFORMED: dict[str, bytes] = {
    "not json": b"{task: chat}",
    "empty": b"",
    "blank": b"  \n ",
    "half": GOOD[:-1],
    "two values": GOOD + GOOD,
    "trailing comma": b'{"task":"chat","payload":{},}',
    "bad utf-8 in a string": b'{"task":"chat","payload":{"a":"\xff\xfe"}}',
    "overlong utf-8": b'{"task":"chat","payload":{"a":"\xc0\xaf"}}',
    "utf-8 surrogate": b'{"task":"chat","payload":{"a":"\xed\xa0\x80"}}',
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "utf-16": GOOD.decode().encode("utf-16"),
    "lone high surrogate": b'{"task":"chat","payload":{"a":"\\ud800"}}',
    "lone low surrogate": b'{"task":"chat","payload":{"\\udc00":1}}',
    "lone surrogate and a big integer": b'{"task":"chat","payload":{"a":"\\ud800","n":%d}}'
    % 10**30,
    "NaN": b'{"task":"chat","payload":{"a":NaN}}',
    "Infinity": b'{"task":"chat","payload":{"a":Infinity}}',
    "-Infinity": b'{"task":"chat","payload":{"a":-Infinity}}',
    "NaN and a big integer": b'{"task":"chat","payload":{"a":NaN,"n":%d}}' % 10**30,
    "float beyond double": b'{"task":"chat","payload":{"a":1e999}}',
    "integer of 5000 digits": b'{"task":"chat","payload":{"a":%b}}' % (b"9" * 5000),
    "leading zero": b'{"task":"chat","payload":{"a":01}}',
    "nul byte": b'{"task":"chat","payload":{"a":"\x00"}}',
    "single quotes": b"{'task':'chat','payload':{}}",
    "comment": b'/* hi */ {"task":"chat","payload":{}}',
    "100000 levels": nested(100_000),
    "100000 levels, never closed": b'{"task":"chat","payload":' + b"[" * 100_000,
    "1000 levels and a big integer": nested(1000, str(10**30)),
    "form": b"task=chat&payload=1",
}


async def test_malformed_bodies_are_rejected(gateway: Gateway) -> None:
    for name, body in MALFORMED.items():
        answer = await gateway.client.post(body)
        problem = check_problem(answer, 400)
        assert problem["code"] in ("malformed_json", "nested_too_deep", "too_many_parts"), name
        assert len(answer.body) < 2000, f"{name}: the body is echoed"
    assert await gateway.redis.dbsize() == 0


async def test_nesting_is_limited_to_64_levels(gateway: Gateway) -> None:
    for core in ("1", "", "{}", '"[[[["'):
        extra = 1 if core == "{}" else 0
        assert (await gateway.client.post(nested(64 - extra, core))).status == 202
        check_problem(await gateway.client.post(nested(65 - extra, core)), 400, "nested_too_deep")
    assert await gateway.redis.xlen(gateway.keys.queue) == 4


INVALID_VALUES: dict[str, tuple[Any, ...]] = {
    "task": ("dance", "CHAT", "chat ", None, 1, ["chat"], {"chat": 1}),
    "payload": (None, [], [["a", 1]], "{}", 1, True),
    "ttl_s": (0, -1, 30 * 24 * 3600 + 1, 10**30, 2**63, 1.5, 60.0, "60", True, [60]),
    "priority": (1,),
    "job_id": ("x",),
}
#: Body and pointers by name.
MISFITS: dict[str, tuple[bytes, list[str]]] = {
    **{
        f"{member} {value}": (chat(**{member: value}), [f"/{member}"])
        for member, values in INVALID_VALUES.items()
        for value in values
    },
    "task missing": (without("task"), ["/task"]),
    "payload missing": (without("payload"), ["/payload"]),
    "everything missing": (b"{}", ["/task", "/payload"]),
    "body a list": (b"[]", [""]),
    "body a string": (b'"chat"', [""]),
    "body null": (b"null", [""]),
    "body a number": (b"12345678901234567890", [""]),
    "extra field with an odd name": (chat(**{"a/b~c": 1}), ["/a~1b~0c"]),
}


async def test_invalid_members_are_rejected_with_their_pointers(gateway: Gateway) -> None:
    for name, (body, pointers) in MISFITS.items():
        problem = check_problem(await gateway.client.post(body), 422, "invalid_request")
        assert [fault["pointer"] for fault in problem["errors"]] == pointers, name
        assert all(fault["detail"] for fault in problem["errors"])
    assert await gateway.redis.dbsize() == 0


async def test_the_payload_is_limited(make: Make) -> None:
    gateway = make()
    for size, status in ((200_000, 202), (200_001, 413)):
        payload = {"t": "x" * (size - len('{"t":""}'))}
        answer = await gateway.client.post({"task": "chat", "payload": payload})
        assert answer.status == status
    problem = check_problem(answer, 413, "payload_too_large")
    assert "200001" in problem["detail"]
    assert "200000" in problem["detail"]
    small = make(max_payload_bytes=10)
    spaces = b'{"task":"chat","payload":{\n  "a"  :  "xy"\n  }\n}'
    assert (await small.client.post(spaces)).status == 202, "whitespace does not count"
    answer = await small.client.post({"task": "chat", "payload": {"a": "xyz"}})
    check_problem(answer, 413, "payload_too_large")
    assert await gateway.redis.xlen(gateway.keys.queue) == 2


async def refusal(exchange: Exchange) -> Answer:
    """A response sent before the body has arrived; the server may keep reading for a while."""
    await exchange.start()
    body = await exchange.chunk()
    assert body is not None
    await exchange.hang_up()
    return Answer(exchange.status, exchange.headers, body)


@pytest.mark.parametrize("declared", ["300000", "9" * 30, "9" * 5000], ids=len)
async def test_a_long_body_is_rejected_by_its_content_length(
    gateway: Gateway, declared: str
) -> None:
    headers = {"content-type": "application/json", "content-length": declared}
    exchange = gateway.client.begin("POST", "/v1/jobs", headers, [])
    answer = await refusal(exchange)  # not one byte of the body was sent
    check_problem(answer, 413, "body_too_large")
    assert answer.header("connection") == "close"


@pytest.mark.parametrize(
    "headers",
    [{"transfer-encoding": "chunked"}, {"content-length": "10"}, {}],
    ids=["chunked", "lying", "http2"],
)
async def test_a_long_body_is_rejected_while_it_is_read(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    """Without a length, with a false one, or under a server (HTTP/2) that needs neither header."""
    chunks = [b'{"task":"chat","payload":{"t":"', *[b"x" * 10_000] * 100_000, b'"}}']
    exchange = gateway.client.begin(
        "POST", "/v1/jobs", {"content-type": "application/json", **headers}, chunks
    )
    check_problem(await refusal(exchange), 413, "body_too_large")
    assert len(exchange._chunks) > 90_000, "the body of 1 GB was not read to its end"
    assert await gateway.redis.dbsize() == 0


async def test_a_chunked_body_within_the_limit_is_accepted(gateway: Gateway) -> None:
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    chunks = [GOOD[i : i + 1] for i in range(len(GOOD))]
    answer = await gateway.client.begin("POST", "/v1/jobs", headers, chunks).answer()
    assert answer.status == 202


async def test_a_wrong_content_type_is_rejected(gateway: Gateway) -> None:
    form = "application/x-www-form-urlencoded"
    for content_type in ("", "text/plain", form, "text/json", "application/jsonp", "x"):
        answer = await gateway.client.post(GOOD, {"content-type": content_type})
        check_problem(answer, 415, "unsupported_media_type")
        assert answer.header("accept-post") == "application/json"
    assert await gateway.redis.dbsize() == 0
    for content_type in ("Application/JSON; charset=utf-8", "application/vnd.sluice+json"):
        assert (await gateway.client.post(GOOD, {"content-type": content_type})).status == 202


async def test_a_wrong_method_gets_405_with_allow(gateway: Gateway) -> None:
    for method, target, allow in (
        ("PUT", "/v1/jobs", "GET, POST"),
        ("DELETE", "/v1/jobs", "GET, POST"),
        ("OPTIONS", "/v1/jobs", "GET, POST"),
        ("POST", "/v1/jobs/x", "DELETE, GET"),
        ("PATCH", "/v1/jobs/x", "DELETE, GET"),
        ("POST", "/v1/jobs/x/events", "GET"),
        ("GET", "/v1/jobs/x/cancel", "POST"),
        ("POST", "/v1/dlq", "DELETE, GET"),
        ("PUT", "/v1/dlq/1-0", "DELETE, GET"),
        ("DELETE", "/v1/dlq/1-0/redrive", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("POST", "/healthz", "GET"),
        ("BREW", "/v1/jobs", "GET, POST"),
    ):
        answer = await gateway.client.send(method, target)
        check_problem(answer, 405, "method_not_allowed")
        assert answer.header("allow") == allow, (method, target)
    assert await gateway.redis.dbsize() == 0


async def test_an_unknown_path_gets_404(gateway: Gateway) -> None:
    """An unusual query is ignored."""
    unknown = ("/", "/v1", "/v2/jobs", "/v1/jobs/x/y", "/v1/jobs/x/events/y", "/%20", "/v1/%F0")
    for target in unknown:
        check_problem(await gateway.client.get(target), 404, "not_found")
    for target in ("/nowhere", "/v1/jobs/x", "/v1/jobs/x/events"):
        for query in ("?a=1", "?%ff", "?\xff=\xfe"):
            check_problem(await gateway.client.get(target + query), 404)


async def test_an_invalid_host_header_is_rejected(gateway: Gateway) -> None:
    for host in ("", "[", "[::1", "a:b:c", "a@b/c?d#e", "\xff", "x" * 5000):
        gateway.client.app = _with_host(gateway.app, host.encode("latin-1"))
        check_problem(await gateway.client.get("/nowhere"), 400, "malformed_request")
        check_problem(await gateway.client.post(b"{}"), 400, "malformed_request")


def _with_host(app: Any, host: bytes) -> Any:
    async def changed(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"host", host), *scope["headers"][1:]]
        await app({**scope, "headers": headers}, receive, send)

    return changed


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
    times = dict.fromkeys(("created_ts", "updated_ts"), job["created_ts"])
    expected = {**CHAT, **times, "job_id": job_id, "status": "queued", "ttl_s": 60}
    expected |= {"result": None, "error": None}
    assert job == expected
    stored = {"result": '{"text":"x","n":12345678901234567890123}', "error": '"boom"'}
    await gateway.redis.hset(key, mapping=stored)
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
        await gateway.redis.hset("job:theirs", mapping=stored)
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
    *("no-such-job", "00000000-0000-0000-0000-000000000000", "%F0%9F%98%80", "%C2%A0", "%20"),
    *("..", "%2e%2e", ".", "x:events", ":events", "x%3Alease", "x" * 500, "x" * 129, "*", "%2A"),
    *("%7Bx%7D", "%3F", "%23", "a%20b", "%ff%fe", "-", "_", "%25", "'", "%22", "<script>", "a\\b"),
]


async def test_unknown_and_invalid_ids_are_not_found(gateway: Gateway) -> None:
    await gateway.create()
    await gateway.redis.hset("job:x:lease", "token", "secret")
    await gateway.redis.set("job:text", "not a hash")
    before = await gateway.snapshot()
    reads, changes = [("GET", ""), ("GET", "/events")], [("DELETE", ""), ("POST", "/cancel")]
    for odd, requests in (*((odd, reads + changes) for odd in ODD_IDS), ("text", reads)):
        for method, suffix in requests:
            answer = await gateway.client.send(method, f"/v1/jobs/{odd}{suffix}")
            problem = check_problem(answer, 404)
            assert problem["code"] in ("job_not_found", "not_found"), odd
            assert "secret" not in answer.body.decode()
    assert await gateway.snapshot() == before
