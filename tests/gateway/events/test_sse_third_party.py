"""Events and keys of third-party writers: they are delivered as well as possible, do not affect
other streams, and cannot break the framing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway.harness import Gateway
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

NDJSON = {"accept": "application/x-ndjson"}
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


async def test_the_job_of_a_third_party_gateway_can_be_watched(gateway: Gateway) -> None:
    """The hash need not contain the id; events are found by the id in the path."""
    await gateway.redis.hset("job:theirs", mapping={"status": "running"})  # type: ignore[misc]
    await gateway.emit("theirs", "queued")
    await gateway.redis.hset("job:theirs", "status", "done")  # type: ignore[misc]
    await gateway.emit("theirs", "done")
    events = await gateway.watch_all("theirs")
    assert [event.event for event in events] == ["queued", "done"]


async def test_a_job_without_events_can_be_watched(gateway: Gateway) -> None:
    await gateway.redis.hset("job:theirs", mapping={"job_id": "theirs"})  # type: ignore[misc]
    stream = await gateway.client.watch("theirs")
    assert (await stream.event("hello")).json()["data"]["job_id"] == "theirs"
    await eventually(lambda: gateway.hub._topics)
    await gateway.emit("theirs", "queued", hint=False)
    await gateway.finish("theirs", hint=False)
    assert [block.event for block in await stream.rest()] == ["queued", "done"]


async def test_invalid_hints_are_ignored(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id)
    await stream.event("queued")
    for hint in (b"", b" ", b"x y z", b"\xff\xfe", b"a" * 100_000):
        await gateway.redis.publish(gateway.keys.hints, hint)
    await gateway.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["done"]
