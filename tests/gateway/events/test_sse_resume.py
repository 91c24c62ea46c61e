"""`Last-Event-ID`: a client resumes exactly where it stopped, or gets a gap notice."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.gateway.asgi import Exchange
from tests.support.gateway.harness import Gateway, check_problem, make_gateway, partitioned
from tests.support.gateway.sse import Block
from tests.support.servers import FAKE, Backend

pytestmark = pytest.mark.fakeredis_only


async def finished_job(gateway: Gateway, messages: int = 6) -> tuple[str, list[str]]:
    """A finished job and the ids of its events."""
    job_id = await gateway.create()
    for n in range(messages):
        await gateway.emit(job_id, "message", {"n": n})
    await gateway.finish(job_id)
    entries = await gateway.redis.xrange(gateway.keys_of(job_id).events(job_id))
    return job_id, [entry_id.decode() for entry_id, _ in entries]


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


async def test_before_the_terminal_event_there_is_no_204(gateway: Gateway) -> None:
    """The hash is written before the event: between the two, the final event is still to come."""
    job_id = await gateway.create()
    running = await gateway.emit(job_id, "running")
    await gateway.redis.hset(gateway.keys.job(job_id), "status", "done")  # type: ignore[misc]
    stream = await gateway.client.watch(job_id, {"last-event-id": running})
    assert stream.status == 200
    await gateway.emit(job_id, "done")
    assert [block.event for block in await stream.rest()] == ["hello", "done"]


async def test_id_beyond_the_end_of_a_running_job_continues_live(gateway: Gateway) -> None:
    job_id = await gateway.create()
    stream = await gateway.client.watch(job_id, {"last-event-id": "99999999999999-0"})
    await stream.event("hello")
    await gateway.emit(job_id, "running")
    await gateway.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["running", "done"]


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
        entries = await gateway.redis.xrange(gateway.keys.events(job_id))
        assert got == [entry_id.decode() for entry_id, _ in entries]
        assert gateway.hub.clients == 0
    finally:
        await gateway.close()
        await backend.close()


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
    entries = await gateway.redis.xrange(gateway.keys.events(job_id))
    assert got == [entry_id.decode() for entry_id, _ in entries]
