"""`GET /v1/jobs/{id}/events`: wire format, order of events, and end of the stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway.harness import Gateway, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

NDJSON = {"accept": "application/x-ndjson"}


async def test_hello_is_sent_first_and_at_once(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    assert stream.status == 200
    assert stream.header("content-length") is None
    assert stream.header("x-request-id")
    hello = await stream.next()
    assert hello is not None
    assert (hello.event, hello.retry, hello.id) == ("hello", "1000", None)
    body = hello.json()
    assert set(body) == {"type", "ts", "step", "data"}
    assert body["data"]["job_id"] == job_id
    assert body["data"]["status"] == "queued"
    assert body["data"]["heartbeat_s"] == 15


@partitioned
async def test_live_events_in_order_until_the_end(gateway: Gateway) -> None:
    for ending in ("done", "error", "canceled"):
        for hint in (True, False):  # without hints, streams are checked regularly
            job_id = await gateway.create()
            stream = await gateway.client.watch(job_id)
            assert (await stream.event("hello")).id is None
            await stream.event("queued")
            ids = [await gateway.emit(job_id, "running", hint=hint)]
            first = await stream.next()
            assert first is not None
            assert (first.id, first.event, first.retry) == (ids[0], "running", None)
            large = {"text": "hi\nthere", "more": "x" * 600_000}  # than a slow client's queue
            ids.append(await gateway.emit(job_id, "message", large, hint=hint))
            ids.append(await gateway.finish(job_id, ending, hint=hint))
            after = await gateway.emit(job_id, "message", {"text": "too late"})
            rest = await stream.rest()
            expected = [(ids[1], "message"), (ids[2], ending)]
            assert [(block.id, block.event) for block in rest] == expected
            assert rest[0].json()["data"] == large
            assert after not in [block.id for block in rest]
            assert gateway.hub.clients == 0


async def test_data_contains_the_whole_event(gateway: Gateway) -> None:
    job_id = await gateway.create()
    data = {"text": "é😀\u2028", "n": 12345678901234567890123, "f": 0.5, "no": None}
    await gateway.emit(job_id, "message", data)
    await gateway.finish(job_id)
    queued, message, done = await gateway.watch_all(job_id)
    assert list(queued.json()) == ["type", "ts", "step", "data"]
    [(stored_id, stored), *_] = await gateway.redis.xrange(gateway.keys.events(job_id))
    assert queued.id == stored_id.decode()
    assert queued.json() == {
        "type": "queued",
        "ts": int(stored[b"ts"]),
        "step": "gateway.enqueue",
        "data": {},
    }
    assert message.json()["data"] == data
    assert done.json() == {
        "type": "done",
        "ts": 1760000000000,
        "step": "test.step",
        "data": {"ms": 1},
    }


@partitioned
async def test_finished_job_is_replayed_and_ends(gateway: Gateway) -> None:
    job_id = await gateway.create()
    for n in range(450):  # more than two pages
        await gateway.emit(job_id, "message", {"n": n})
    await gateway.finish(job_id)
    before = await gateway.snapshot()
    events = await gateway.watch_all(job_id)
    assert [event.event for event in events] == ["queued", *["message"] * 450, "done"]
    assert [event.json()["data"]["n"] for event in events[1:-1]] == list(range(450))
    positions = [event.position for event in events]
    assert positions == sorted(set(positions))
    assert await gateway.snapshot() == before
    assert gateway.hub.clients == 0


async def test_clients_get_the_events_of_their_job(gateway: Gateway) -> None:
    ids = [await gateway.create() for _ in range(8)]
    streams = [await gateway.client.watch(ids[0]) for _ in range(20)]
    others = [await gateway.client.watch(job_id) for job_id in ids[1:]]
    for stream in streams:
        await stream.event("queued")
    assert gateway.hub.clients == 27
    for number, job_id in enumerate(ids):
        await gateway.emit(job_id, "message", {"n": number})
        await gateway.finish(job_id)
    rests = [await stream.rest() for stream in streams]
    assert all(rest == rests[0] for rest in rests)
    assert [block.event for block in rests[0]] == ["message", "done"]
    for number, stream in enumerate(others, 1):
        events = await stream.rest()
        assert [event.event for event in events] == ["hello", "queued", "message", "done"]
        assert events[2].json()["data"] == {"n": number}
    assert gateway.hub.clients == 0


async def test_ndjson_is_sent_on_request(gateway: Gateway) -> None:
    job_id = await gateway.create()
    await gateway.emit(job_id, "message", b'{\n "text": "a\\nb"\n}')
    last_id = await gateway.finish(job_id)
    exchange = gateway.client.begin("GET", f"/v1/jobs/{job_id}/events", NDJSON)
    answer = await exchange.answer()
    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("application/x-ndjson")
    assert answer.body.endswith(b"\n")
    lines: list[Any] = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["type"] for line in lines] == ["hello", "queued", "message", "done"]
    assert "id" not in lines[0]
    assert lines[2]["data"] == {"text": "a\nb"}
    assert set(lines[3]) == {"id", "type", "ts", "step", "data"}
    assert lines[3]["id"] == last_id
    assert gateway.hub.clients == 0


SSE, LINES = "text/event-stream", "application/x-ndjson"
ACCEPT: list[tuple[str | None, str | None]] = [
    (None, SSE),
    ("", SSE),
    ("*/*", SSE),
    ("text/event-stream", SSE),
    ("TEXT/Event-Stream;q=0.5", SSE),
    ("text/*", SSE),
    ("text/html, */*;q=0.1", SSE),
    ("application/x-ndjson", LINES),
    ("application/jsonl", LINES),
    ("application/x-ndjson, text/event-stream", LINES),
    ("text/event-stream;q=0, application/x-ndjson", LINES),
    ("application/json", None),
    ("image/png", None),
    (";;;,,,", None),
    ("x" * 10_000, None),
    ("\xff/\xfe", None),
]


async def test_the_accept_header_selects_the_format(gateway: Gateway) -> None:
    job_id = await gateway.create()
    await gateway.finish(job_id)
    for accept, kind in ACCEPT:
        headers = {} if accept is None else {"accept": accept}
        answer = await gateway.client.get(f"/v1/jobs/{job_id}/events", headers)
        if kind is None:
            check_problem(answer, 406, "not_acceptable")
        else:
            assert answer.status == 200, accept
            assert (answer.header("content-type") or "").startswith(kind), accept
    assert gateway.hub.clients == 0
