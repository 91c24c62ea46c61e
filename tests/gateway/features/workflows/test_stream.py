"""The event stream of a workflow job: complete, in order, resumable, with an end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.events.hub import PAGE
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.asgi import Exchange
from tests.gateway.conftest import Make
from tests.gateway.features.workflows.acting import execute, fail, reviewing, work
from tests.gateway.features.workflows.kit import JOBS, KEYS, Workflows, check_envelope
from tests.gateway.sse import Block
from tests.worker.kit import eventually


async def watch(workflows: Workflows, job_id: str, **headers: str) -> Exchange:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await workflows.gateway.client.begin(
        "GET", f"{JOBS}/{job_id}/events/stream", named
    ).start()


async def told(workflows: Workflows, job_id: str, after: str | None = None) -> list[Block]:
    """Everything up to the end, without the hello."""
    stream = await watch(workflows, job_id, **({} if after is None else {"last_event_id": after}))
    assert stream.status == 200
    hello, *events = await stream.rest()
    assert hello.event == "hello"
    return events


async def live(workflows: Workflows) -> None:
    await eventually(
        lambda: (
            workflows.gateway.hub._subscribers
            and all(watch.live for watch in workflows.gateway.hub._subscribers)
        )
    )


async def ended(workflows: Workflows) -> str:
    """A job that was cancelled after its first step had begun."""
    job_id = await workflows.made()
    await execute(workflows, job_id, "sources")
    await workflows.post(f"/{job_id}/cancel")
    return job_id


async def test_from_the_first_event_to_the_last(workflows: Workflows) -> None:
    job_id = await workflows.made({"metadata": {"a": 1}})
    stream = await watch(workflows, job_id)
    assert stream.header("content-type") == "text/event-stream; charset=utf-8"
    assert stream.header("cache-control") == "no-store, no-transform"
    assert stream.header("x-accel-buffering") == "no"
    assert stream.header("vary") == "Accept"
    hello = await stream.next()
    assert hello is not None
    assert (hello.event, hello.retry, hello.id) == ("hello", "1000", None)
    known = hello.json()["data"]
    assert (known["job_id"], known["status"], known["progress"]) == (job_id, "queued", 0.0)
    assert known["current_step"] == "sources"
    created = await stream.next()
    assert created is not None
    assert (created.id, created.event) == ("1-0", "job.created")
    assert created.json()["data"] == {"metadata": {"a": 1}}
    await live(workflows)
    await execute(workflows, job_id, "sources")
    started = await stream.next()
    assert started is not None
    assert (started.id, started.event) == ("2-0", "step.started")
    body = started.json()
    assert set(body) == {"type", "ts", "step", "data"}
    assert (body["type"], body["step"]) == ("step.started", "sources")
    await workflows.post(f"/{job_id}/cancel")
    assert [block.event for block in await stream.rest()] == ["job.cancelled"]
    assert workflows.gateway.hub.clients == 0


async def test_what_was_stored_and_then_over(workflows: Workflows) -> None:
    job_id = await ended(workflows)
    events = await told(workflows, job_id)
    assert [event.id for event in events] == ["1-0", "2-0", "3-0"]
    assert [event.event for event in events] == ["job.created", "step.started", "job.cancelled"]


async def test_who_resumes_misses_nothing_and_hears_nothing_twice(workflows: Workflows) -> None:
    job_id = await ended(workflows)
    assert [event.id for event in await told(workflows, job_id, "1-0")] == ["2-0", "3-0"]
    over = await workflows.get(f"/{job_id}/events/stream", last_event_id="3-0")
    assert (over.status, over.body) == (204, b"")
    # An id from before a FLUSHALL: all current events are new.
    assert [event.id for event in await told(workflows, job_id, "999-0")] == ["1-0", "2-0", "3-0"]
    by_query = await workflows.get(f"/{job_id}/events/stream?last_event_id=3-0")
    assert by_query.status == 204


async def test_a_job_that_was_taken_up_again_goes_on(workflows: Workflows) -> None:
    job_id = await workflows.made()
    await execute(workflows, job_id, "sources")
    stream = await watch(workflows, job_id)
    await live(workflows)
    await fail(workflows, job_id)
    first = await stream.rest()
    assert first[-1].event == "job.failed"  # it is over for now
    after = {"last_event_id": str(first[-1].id)}
    assert (await workflows.get(f"/{job_id}/events/stream", **after)).status == 204

    await execute(workflows, job_id, "sources")
    resumed, whole = await watch(workflows, job_id, **after), await watch(workflows, job_id)
    await live(workflows)
    await work(workflows, job_id)
    await workflows.post(f"/{job_id}/cancel")
    later = ["step.started", "step.completed", "job.cancelled"]
    assert [block.event for block in await resumed.rest()][1:] == later
    kinds = [block.event for block in await whole.rest()]
    assert kinds[-4:] == ["job.failed", *later]  # an end in its history ends nothing


async def test_what_came_after_the_end_is_told_too(workflows: Workflows) -> None:
    """Undoing is still possible then."""
    job_id = await ended(workflows)
    await workflows.redis.xadd(KEYS.events(job_id), {"type": "undo.applied"}, id="4-0")
    assert [event.event for event in await told(workflows, job_id)][-2:] == [
        "job.cancelled",
        "undo.applied",
    ]
    assert [event.id for event in await told(workflows, job_id, "3-0")] == ["4-0"]


async def test_a_long_history_ends_at_the_end_of_a_page(workflows: Workflows) -> None:
    """It ended while the client read what was before."""
    job_id = await workflows.made()
    stream = await watch(workflows, job_id)
    await stream.next()
    for seq in range(2, PAGE):
        await workflows.redis.xadd(KEYS.events(job_id), {"type": "step.progress"}, id=f"{seq}-0")
    await workflows.redis.xadd(KEYS.events(job_id), {"type": "job.failed"}, id=f"{PAGE}-0")
    assert [block.id for block in await stream.rest()][-1] == f"{PAGE}-0"


async def test_what_was_trimmed_is_told(workflows: Workflows) -> None:
    job_id = await ended(workflows)
    await workflows.redis.xtrim(KEYS.events(job_id), maxlen=1, approximate=False)
    gap, last = await told(workflows, job_id)
    assert (gap.event, gap.id) == ("gap", None)
    assert gap.json()["data"] == {"from": "0-0", "to": "3-0"}
    assert last.id == "3-0"
    # The numbers are consecutive: no event is missing.
    assert [event.event for event in await told(workflows, job_id, "2-0")] == ["job.cancelled"]


async def test_as_lines(workflows: Workflows) -> None:
    job_id = await ended(workflows)
    answer = await workflows.get(f"/{job_id}/events/stream", accept="application/x-ndjson")
    assert str(answer.header("content-type")).startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["type"] for line in lines] == [
        *("hello", "job.created", "step.started", "job.cancelled")
    ]
    assert [line.get("id") for line in lines] == [None, "1-0", "2-0", "3-0"]


async def test_many_hear_the_same(workflows: Workflows) -> None:
    job_id = await workflows.made()
    streams = [await watch(workflows, job_id) for _ in range(10)]
    await live(workflows)
    assert list(workflows.gateway.hub._topics) == [job_id]
    await execute(workflows, job_id, "sources")
    await workflows.post(f"/{job_id}/cancel")
    heard = [[block.id for block in await stream.rest()][1:] for stream in streams]
    assert heard == [["1-0", "2-0", "3-0"]] * 10
    assert not workflows.gateway.hub._topics


async def test_proof_of_life(make: Make) -> None:
    workflows = Workflows(make(sse_heartbeat_s=0.2))
    job_id = await reviewing(workflows)  # holds no task, no job, no timer, and still is there
    stream = await watch(workflows, job_id)
    while (block := await stream.next()) is not None and block.comment is None:
        pass
    assert block is not None
    await workflows.redis.delete(KEYS.job(job_id))
    assert (await stream.rest())[-1].event == "gone"


async def test_farewell(workflows: Workflows) -> None:
    job_id = await workflows.made()
    stream = await watch(workflows, job_id)
    await live(workflows)
    workflows.gateway.hub.close_streams()
    last = (await stream.rest())[-1]
    assert (last.event, last.id) == ("shutdown", None)
    assert last.retry


async def test_what_is_refused(fake_workflows: Workflows) -> None:
    workflows = fake_workflows
    job_id = await workflows.made()
    check_envelope(await workflows.get("/wf_20200101_001/events/stream"), 404, "job_not_found")
    bad = await workflows.get(f"/{job_id}/events/stream", last_event_id="evt_3")
    check_envelope(bad, 400, "invalid_last_event_id")
    bad = await workflows.get(f"/{job_id}/events/stream", accept="image/png")
    check_envelope(bad, 406, "not_acceptable")


async def test_too_many_streams(fake_make: Make) -> None:
    workflows = Workflows(fake_make(sse_max_clients=1))
    job_id = await workflows.made()
    stream = await watch(workflows, job_id)
    await stream.next()
    check_envelope(await workflows.get(f"/{job_id}/events/stream"), 503, "too_many_streams")


async def test_tenants_do_not_hear_each_other(workflows: Workflows) -> None:
    ours = await key_for(workflows.gateway, "a", scopes=("jobs:read", "jobs:write"), tenant="a")
    theirs = await key_for(workflows.gateway, "b", scopes=("jobs:read",), tenant="b")
    job_id = await workflows.made(None, **bearer(ours))
    foreign = await workflows.get(f"/{job_id}/events/stream", **bearer(theirs))
    check_envelope(foreign, 404, "job_not_found")
    assert (await watch(workflows, job_id, **bearer(ours))).status == 200


async def test_a_core_job_with_the_id_of_a_workflow_job(workflows: Workflows) -> None:
    """A third-party producer may use any job id; the two streams stay separate."""
    job_id = await workflows.made()
    gateway = workflows.gateway
    fields: Any = {"job_id": job_id, "task": "chat", "status": "queued", "payload": "{}"}
    await gateway.redis.hset(gateway.keys.job(job_id), mapping=fields)
    await gateway.emit(job_id, "queued")
    core, stream = await gateway.client.watch(job_id), await watch(workflows, job_id)
    await live(workflows)
    await gateway.finish(job_id)
    await execute(workflows, job_id, "sources")
    await workflows.post(f"/{job_id}/cancel")
    assert [block.event for block in await core.rest()] == ["hello", "queued", "done"]
    kinds = [block.event for block in await stream.rest()]
    assert kinds == ["hello", "job.created", "step.started", "job.cancelled"]


async def test_nothing_is_lost_between_history_and_life(workflows: Workflows) -> None:
    """Events happen while clients come and go; each of them has all, in order, once."""
    job_id = await workflows.made()

    async def write() -> None:
        key = KEYS.events(job_id)
        for seq in range(2, 60):
            await workflows.redis.xadd(key, {"type": "step.progress"}, id=f"{seq}-0")
            await workflows.redis.publish(workflows.gateway.keys.hints, job_id)
            await asyncio.sleep(0)
        await workflows.redis.xadd(key, {"type": "job.failed"}, id="60-0")
        await workflows.redis.publish(workflows.gateway.keys.hints, job_id)

    async def follow() -> list[int]:
        return [block.position[0] for block in await told(workflows, job_id)]

    writing = asyncio.create_task(write())
    heard = await asyncio.gather(*(follow() for _ in range(5)))
    await writing
    assert heard == [list(range(1, 61))] * 5


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
async def test_the_client_leaves(workflows: Workflows, accept: str) -> None:
    job_id = await workflows.made()
    stream = await watch(workflows, job_id, accept=accept)
    await live(workflows)
    await stream.hang_up()
    assert workflows.gateway.hub.clients == 0
    assert not workflows.gateway.hub._topics
