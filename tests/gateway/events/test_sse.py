"""`GET /v1/jobs/{id}/events`: format, order, end, resumption, and third-party events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.gateway.asgi import Exchange
from tests.support.gateway.harness import Gateway, check_problem, make_gateway, partitioned
from tests.support.gateway.sse import Block
from tests.support.servers import FAKE, Backend
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

NDJSON = {"accept": "application/x-ndjson"}


@partitioned
async def test_live_events_in_order_until_the_end(gateway: Gateway) -> None:
    for ending in ("done", "error", "canceled"):
        for hint in (True, False):  # without hints, streams are checked regularly
            job_id = await gateway.create()
            stream = await gateway.client.watch(job_id)
            assert (await stream.event("hello")).id is None
            await stream.event("queued")
            ids = [await gateway.emit(job_id, "running", hint=hint)]
            first = await stream.block()
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
    stream = await gateway.client.watch(job_id)
    assert (stream.status, stream.header("content-length")) == (200, None)
    assert stream.header("x-request-id")
    hello, queued, message, done = await stream.rest()
    assert list(hello.json()) == list(queued.json()) == ["type", "ts", "step", "data"]
    facts = hello.json()["data"]
    assert (facts["job_id"], facts["status"], facts["heartbeat_s"]) == (job_id, "done", 15)
    [(stored_id, stored), *_] = await gateway.redis.xrange(gateway.keys.events(job_id))
    assert queued.id == stored_id.decode()
    body = {"type": "queued", "ts": int(stored[b"ts"]), "step": "gateway.enqueue", "data": {}}
    assert queued.json() == body
    assert message.json()["data"] == data
    body = {"type": "done", "ts": 1760000000000, "step": "test.step", "data": {"ms": 1}}
    assert done.json() == body


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
    answer = await gateway.client.get(f"/v1/jobs/{job_id}/events", NDJSON)
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


async def finished_job(gateway: Gateway, messages: int = 6) -> tuple[str, list[str]]:
    """A finished job and the ids of its events."""
    job_id = await gateway.create()
    for n in range(messages):
        await gateway.emit(job_id, "message", {"n": n})
    await gateway.finish(job_id)
    return job_id, await stored_ids(gateway, job_id)


async def stored_ids(gateway: Gateway, job_id: str) -> list[str]:
    entries = await gateway.redis.xrange(gateway.keys_of(job_id).events(job_id))
    return [entry_id.decode() for entry_id, _ in entries]


def ids_of(blocks: list[Block]) -> list[str]:
    return [block.id for block in blocks if block.id]


@partitioned
async def test_a_finished_job_can_be_resumed_after_every_event(gateway: Gateway) -> None:
    """A browser reconnects to the same URL, with the newer id in the header."""
    job_id, ids = await finished_job(gateway)
    for beginning in ("", "0-0"):
        assert ids_of(await gateway.watch_all(job_id, beginning)) == ids
    for cut in range(len(ids) - 1):
        header, query = {"last-event-id": ids[cut]}, f"?last_event_id={ids[cut]}"
        for headers, suffix in ((header, ""), ({}, query), (header, f"?last_event_id={ids[0]}")):
            stream = await gateway.client.watch(job_id, headers, suffix)
            hello, *events = await stream.rest()
            assert hello.event == "hello"
            assert ids_of(events) == ids[cut + 1 :]
            assert "gap" not in [event.event for event in events]


async def test_resume_after_the_end_gets_204(gateway: Gateway) -> None:
    """A worker that lost its lease may still write events; the stream has ended for the client."""
    job_id, ids = await finished_job(gateway)
    ms = int(ids[-1].partition("-")[0])
    target = f"/v1/jobs/{job_id}/events"
    for last in (f"{ms + 1000}-0", "18446744073709551615-18446744073709551615", ids[-1], ids[-1]):
        answer = await gateway.client.get(target, {"last-event-id": last})
        assert (answer.status, answer.body) == (204, b"")
        assert answer.header("x-request-id")
        if last == ids[-1]:
            await gateway.emit(job_id, "message", {"text": "too late"})
    assert gateway.hub.clients == 0


async def test_before_the_terminal_event_a_stream_continues(gateway: Gateway) -> None:
    """The hash is written before the event: between the two, the final event is still to come."""
    job_id = await gateway.create()
    running = await gateway.emit(job_id, "running")
    await gateway.redis.hset(gateway.keys.job(job_id), "status", "done")
    streams = [
        await gateway.client.watch(job_id, {"last-event-id": last})
        for last in (running, "99999999999999-0")  # beyond the end is the end
    ]
    for stream in streams:
        assert stream.status == 200
        await stream.event("hello")
    await gateway.emit(job_id, "done")
    for stream in streams:
        assert [block.event for block in await stream.rest()] == ["done"]


async def test_malformed_ids_are_rejected(gateway: Gateway) -> None:
    target = f"/v1/jobs/{await gateway.create()}/events"
    for malformed in (
        *("x", "1", "-", "1-", "-1", "1-1-1", "1.0-0", "+1-0", " 1-0", "0x1-0", "1-0;", "$", "+"),
        *("18446744073709551616-0", "1-18446744073709551616", "9" * 5000 + "-0", "\xb2-0", "1-0\t"),
    ):
        answer = await gateway.client.get(target, {"last-event-id": malformed})
        check_problem(answer, 400, "invalid_last_event_id")
    for malformed in ("%D9%A1-%D9%A0", "1%000-0", "%ff", "1-0%0A"):
        answer = await gateway.client.get(f"{target}?last_event_id={malformed}")
        check_problem(answer, 400, "invalid_last_event_id")


async def test_trimmed_events_are_reported_as_a_gap(gateway: Gateway) -> None:
    job_id, ids = await finished_job(gateway)
    await gateway.redis.xtrim(gateway.keys.events(job_id), maxlen=3, approximate=False)
    for known in (ids[1], None):
        gap, *events = await gateway.watch_all(job_id, known)
        assert (gap.event, gap.id) == ("gap", None)
        assert gap.json()["data"] == {"from": known or "0-0", "to": ids[-3]}
        assert ids_of(events) == ids[-3:]
    events = await gateway.watch_all(job_id, ids[-3])
    assert [event.event for event in events] == ["message", "done"], "no gap behind the client"


async def read_some(stream: Exchange, count: int) -> list[str]:
    got: list[str] = []
    while len(got) < count and (block := await stream.next()) is not None:
        if block.id:
            got.append(block.id)
    return got


steps = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.integers(1, 5), st.booleans()),
        st.tuples(st.just("read"), st.integers(1, 4), st.booleans()),
    ),
    max_size=12,
)


@given(steps)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_reconnects_neither_lose_nor_repeat_events(
    steps: list[tuple[str, int, bool]],
) -> None:
    """Events are written while a client reads some, disconnects, and resumes with its last id."""
    backend = Backend(FAKE)
    gateway = make_gateway(backend)
    try:
        job_id = await gateway.create()
        written, got = 1, []
        for kind, count, flag in steps:
            if kind == "emit":
                for n in range(count):
                    await gateway.emit(job_id, "message", {"n": n}, hint=flag)
                written += count
            elif len(got) < written:
                headers = {"last-event-id": got[-1]} if got else {}
                stream = await gateway.client.watch(job_id, headers)
                got += await read_some(stream, min(count, written - len(got)))
                await stream.hang_up()
        await gateway.finish(job_id)
        got += ids_of(await gateway.watch_all(job_id, got[-1] if got else None))
        assert got == await stored_ids(gateway, job_id)
        assert gateway.hub.clients == 0
    finally:
        await gateway.close()
        await backend.close()


DEEP = b"[" * 400 + b"]" * 400

ODD: dict[str, dict[str, Any]] = {
    "data no json": {"type": "message", "data": "{oops"},
    "data binary": {"type": "message", "data": b"\xff\x00\n\n"},
    "data empty": {"type": "message", "data": ""},
    "data blank": {"type": "message", "data": " \n"},
    "data absent": {"type": "message"},
    "data pretty": {"type": "message", "data": b'{\r\n\t"a":\n1\r}'},
    "data raw lines": {"type": "message", "data": "data: x\n\nevent: done\ndata: {}\n\n"},
    "data a string with lines": {"type": "message", "data": json.dumps("a\n\nb\r\u2028")},
    "data NaN": {"type": "message", "data": "NaN"},
    "data a big integer": {"type": "message", "data": b'{"n":%d}' % 10**30},
    "data pretty with a big integer": {"type": "message", "data": b'{"n":\n%d}' % 10**30},
    "data deep": {"type": "message", "data": DEEP},
    "data deep and pretty": {"type": "message", "data": DEEP + b"\n"},
    "data very deep": {"type": "message", "data": b"[" * 5000 + b"]" * 5000},
    "data of a megabyte": {"type": "message", "data": json.dumps("x" * 1_000_000)},
    "type with lines": {"type": "message\ndata: {}\n\nevent: done"},
    "type with CR": {"type": "mess\rage"},
    "type with a line separator": {"type": "a\u2028b\x85c"},
    "type binary": {"type": b"\xff\xfe"},
    "type empty": {"type": ""},
    "type absent": {"colour": "red"},
    "type with NUL": {"type": "a\x00b"},
    "step with lines": {"type": "message", "step": "a\n\nb"},
    "ts no number": {"type": "message", "ts": "soon"},
    "ts beyond 64 bits": {"type": "message", "ts": "9" * 30, "data": "{}"},
    "ts of 10000 digits": {"type": "message", "ts": "9" * 10_000},
    "ts negative": {"type": "message", "ts": "-5"},
    "a fifth field": {"type": "message", "data": "{}", "extra": "\n\n"},
}


@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
async def test_unusual_events_are_delivered(gateway: Gateway, live: bool) -> None:
    """Each is delivered as one event, and the stream of another job is not affected."""
    neighbour = await gateway.create()
    other_stream = await gateway.client.watch(neighbour)
    await other_stream.event("queued")
    for name, fields in ODD.items():
        job_id = await gateway.create()
        if live:
            stream = await gateway.client.watch(job_id)
            await stream.event("queued")
        await gateway.redis.xadd(gateway.keys.events(job_id), fields)
        await gateway.finish(job_id)
        odd, done = await stream.rest() if live else (await gateway.watch_all(job_id))[1:]
        assert done.event == "done", name
        body = odd.json()
        assert set(body) == {"type", "ts", "step", "data"}, name
        assert type(body["ts"]) is int, name
        if name == "data no json":
            assert body["data"] == {"_raw": "{oops"}
        answer = await gateway.client.get(f"/v1/jobs/{job_id}/events", NDJSON)
        kinds = [json.loads(line)["type"] for line in answer.body.split(b"\n")[:-1]]
        assert len(kinds) == 4, name
        assert (kinds[0], kinds[-1]) == ("hello", "done"), name
    await gateway.finish(neighbour)
    assert [block.event for block in await other_stream.rest()] == ["done"]


async def test_a_job_of_a_third_party_gateway_can_be_watched(gateway: Gateway) -> None:
    """The hash need not contain the id; events are found by the id in the path."""
    await gateway.redis.hset("job:theirs", "status", "running")
    stream = await gateway.client.watch("theirs")  # has no events yet
    assert (await stream.event("hello")).json()["data"]["job_id"] == "theirs"
    await eventually(lambda: gateway.hub._topics)
    for hint in (b"", b" ", b"x y z", b"\xff\xfe", b"a" * 100_000):
        await gateway.redis.publish(gateway.keys.hints, hint)
    await gateway.emit("theirs", "queued", hint=False)
    await gateway.finish("theirs", hint=False)
    assert [block.event for block in await stream.rest()] == ["queued", "done"]
    events = await gateway.watch_all("theirs")
    assert [event.event for event in events] == ["queued", "done"]


async def test_reconnects_during_many_events_lose_none(gateway: Gateway) -> None:
    """Each connection reads a few events, stored or live, and is closed."""
    job_id = await gateway.create()
    got: list[str] = []
    for round_ in range(25):
        headers = {"last-event-id": got[-1]} if got else {}
        stream = await gateway.client.watch(job_id, headers)
        for n in range(3):
            await gateway.emit(job_id, "message", {"n": n}, hint=n != round_ % 3)
        got += await read_some(stream, 2)
        await stream.hang_up()
    await gateway.finish(job_id)
    got += ids_of(await gateway.watch_all(job_id, got[-1]))
    assert got == await stored_ids(gateway, job_id)
