"""The event stream of a workflow job: complete, in order, resumable, with an end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gateway.asgi import Exchange
from tests.support.gateway.harness import Make
from tests.support.gateway.sse import Block
from tests.support.gateway.workflow_actions import execute, fail, reviewing, work
from tests.support.gateway.workflows import JOBS, KEYS, Workflows, check_envelope
from tests.support.worker.harness import eventually

pytestmark = pytest.mark.fakeredis_only


async def watch(workflows: Workflows, job_id: str, **headers: str) -> Exchange:
    return await workflows.gateway.client.begin(
        "GET", f"{JOBS}/{job_id}/events/stream", headers
    ).start()


async def watch_all(workflows: Workflows, job_id: str, after: str | None = None) -> list[Block]:
    """All events up to the end, without the hello."""
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
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources")
    await workflows.post(f"/{job_id}/cancel")
    return job_id


async def test_events_are_sent_from_the_first_to_the_last(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"metadata": {"a": 1}})
    stream = await watch(workflows, job_id)
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


async def test_a_resumed_stream_has_no_gap_and_no_repeats(workflows: Workflows) -> None:
    job_id = await ended(workflows)
    events = await watch_all(workflows, job_id)
    assert [(event.id, event.event) for event in events] == [
        ("1-0", "job.created"),
        ("2-0", "step.started"),
        ("3-0", "job.cancelled"),
    ]
    assert [event.id for event in await watch_all(workflows, job_id, "1-0")] == ["2-0", "3-0"]
    over = await workflows.get(f"/{job_id}/events/stream", last_event_id="3-0")
    assert (over.status, over.body) == (204, b"")
    by_query = await workflows.get(f"/{job_id}/events/stream?last_event_id=3-0")
    assert by_query.status == 204
    # An id from before a FLUSHALL: all current events are new.
    assert [event.id for event in await watch_all(workflows, job_id, "999-0")] == [
        "1-0",
        "2-0",
        "3-0",
    ]


async def test_a_stream_continues_if_the_job_is_restarted(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources")
    stream = await watch(workflows, job_id)
    await live(workflows)
    await fail(workflows, job_id)
    first = await stream.rest()
    assert first[-1].event == "job.failed"  # the stream ends
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
    assert kinds[-4:] == [
        "job.failed",
        *later,
    ]  # a final event in the history does not end the stream


async def test_events_after_the_final_one_are_sent(workflows: Workflows) -> None:
    """An ended job can still be undone."""
    job_id = await ended(workflows)
    await workflows.redis.xadd(KEYS.events(job_id), {"type": "undo.applied"}, id="4-0")
    assert [event.event for event in await watch_all(workflows, job_id)][-2:] == [
        "job.cancelled",
        "undo.applied",
    ]
    assert [event.id for event in await watch_all(workflows, job_id, "3-0")] == ["4-0"]


async def test_trimmed_events_are_reported_as_a_gap(workflows: Workflows) -> None:
    job_id = await ended(workflows)
    await workflows.redis.xtrim(KEYS.events(job_id), maxlen=1, approximate=False)
    gap, last = await watch_all(workflows, job_id)
    assert (gap.event, gap.id) == ("gap", None)
    assert gap.json()["data"] == {"from": "0-0", "to": "3-0"}
    assert last.id == "3-0"
    # The numbers are consecutive: no event is missing.
    assert [event.event for event in await watch_all(workflows, job_id, "2-0")] == ["job.cancelled"]


async def test_unknown_and_deleted_jobs_have_no_stream(make: Make) -> None:
    workflows = Workflows(make(sse_heartbeat_s=0.05))
    job_id = await reviewing(workflows)  # waits without a task, job or timer
    check_envelope(await workflows.get("/wf_20200101_001/events/stream"), 404, "job_not_found")
    bad = await workflows.get(f"/{job_id}/events/stream", last_event_id="evt_3")
    check_envelope(bad, 400, "invalid_last_event_id")
    stream = await watch(workflows, job_id)
    await live(workflows)
    await workflows.redis.delete(KEYS.job(job_id))
    assert (await stream.rest())[-1].event == "gone"


async def test_a_core_job_with_the_same_id_has_its_own_stream(workflows: Workflows) -> None:
    """A third-party producer may use any job id; the two streams stay separate."""
    job_id = await workflows.create_job()
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
