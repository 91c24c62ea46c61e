"""Lists of jobs and events page by page, and the event stream of a job."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.common.features.workflows import listing
from tests.gateway.features.workflows.test_webhook_dlq import DELIVERIES, DLQ
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Exchange
from tests.support.gateway.harness import Make
from tests.support.gateway.sse import Block
from tests.support.gateway.workflows import JOBS, KEYS, PLAIN, Workflows, check_envelope, things
from tests.support.worker.harness import eventually

pytestmark = pytest.mark.fakeredis_only


async def watch(workflows: Workflows, job_id: str, **headers: str) -> Exchange:
    target = f"{JOBS}/{job_id}/events/stream"
    return await workflows.gateway.client.begin("GET", target, headers).start()


async def watch_all(workflows: Workflows, job_id: str, after: str | None = None) -> list[Block]:
    """All events up to the end, without the hello."""
    stream = await watch(workflows, job_id, **({} if after is None else {"last_event_id": after}))
    assert stream.status == 200
    hello, *events = await stream.rest()
    assert hello.event == "hello"
    return events


async def live(workflows: Workflows) -> None:
    subscribers = workflows.gateway.hub._subscribers
    await eventually(lambda: subscribers and all(each.live for each in subscribers))


async def ended(workflows: Workflows) -> str:
    """A job that was cancelled after its first step had begun."""
    job_id = await workflows.create_job()
    await workflows.execute(job_id, "sources")
    await workflows.post(f"/{job_id}/cancel")
    return job_id


async def test_events_are_sent_from_the_first_to_the_last(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"metadata": {"a": 1}})
    stream = await watch(workflows, job_id)
    hello = await stream.block()
    assert (hello.event, hello.retry, hello.id) == ("hello", "1000", None)
    known = hello.json()["data"]
    assert (known["job_id"], known["status"], known["progress"]) == (job_id, "queued", 0.0)
    assert known["current_step"] == "sources"
    created = await stream.block()
    assert (created.id, created.event) == ("1-0", "job.created")
    assert created.json()["data"] == {"metadata": {"a": 1}}
    await live(workflows)
    await workflows.execute(job_id, "sources")
    started = await stream.block()
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
    assert [event.event for event in events] == ["job.created", "step.started", "job.cancelled"]
    # 999-0 is an id from before a FLUSHALL: all current events are new.
    for after, ids in (("1-0", ["2-0", "3-0"]), ("999-0", ["1-0", "2-0", "3-0"])):
        assert [event.id for event in await watch_all(workflows, job_id, after)] == ids
    path = f"/{job_id}/events/stream"
    for over in (
        await workflows.get(path, last_event_id="3-0"),
        await workflows.get(f"{path}?last_event_id=3-0"),
    ):
        assert (over.status, over.body) == (204, b"")


async def test_a_stream_continues_if_the_job_is_restarted(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.execute(job_id, "sources")
    stream = await watch(workflows, job_id)
    await live(workflows)
    await workflows.fail(job_id)
    first = await stream.rest()
    assert first[-1].event == "job.failed"  # the stream ends
    after = {"last_event_id": str(first[-1].id)}
    assert (await workflows.get(f"/{job_id}/events/stream", **after)).status == 204

    await workflows.execute(job_id, "sources")
    resumed, whole = await watch(workflows, job_id, **after), await watch(workflows, job_id)
    await live(workflows)
    await workflows.work(job_id)
    await workflows.post(f"/{job_id}/cancel")
    later = ["step.started", "step.completed", "job.cancelled"]
    assert [block.event for block in await resumed.rest()][1:] == later
    kinds = [block.event for block in await whole.rest()]
    # A final event in the history does not end the stream.
    assert kinds[-4:] == ["job.failed", *later]


async def test_events_after_the_final_one_are_sent(workflows: Workflows) -> None:
    """An ended job can still be undone."""
    job_id = await ended(workflows)
    await workflows.redis.xadd(KEYS.events(job_id), {"type": "undo.applied"}, id="4-0")
    assert [event.id for event in await watch_all(workflows, job_id)] == [
        "1-0",
        "2-0",
        "3-0",
        "4-0",
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
    job_id = await workflows.reviewing()  # waits without a task, job or timer
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
    await workflows.execute(job_id, "sources")
    await workflows.post(f"/{job_id}/cancel")
    assert [block.event for block in await core.rest()] == ["hello", "queued", "done"]
    kinds = [block.event for block in await stream.rest()]
    assert kinds == ["hello", "job.created", "step.started", "job.cancelled"]


async def ids_of(workflows: Workflows, query: str = "", **headers: str) -> list[str]:
    """Ids over all pages."""
    pages = await workflows.pages(f"?{query}", **headers)
    return [job["job_id"] for page in pages for job in page["jobs"]]


async def test_jobs_are_listed_newest_first(workflows: Workflows) -> None:
    nothing = {"count": 0, "has_more": False, "next_cursor": None, "total": 0}
    assert (await workflows.read(""))["pagination"] == nothing
    job_ids = [await workflows.create_job() for _ in range(5)]
    await workflows.run(job_ids[2], "sources")
    answer = await workflows.read("")
    assert list(answer) == ["success", "jobs", "pagination"]
    assert [job["job_id"] for job in answer["jobs"]] == job_ids[::-1]
    whole = await workflows.status(job_ids[2])
    listed = answer["jobs"][2]
    assert listed == {name: whole[name] for name in listed}
    assert list(listed) == list(whole)[: len(listed)]
    assert answer["pagination"] == {
        "count": 5, "has_more": False, "next_cursor": None, "total": 5,
    }  # fmt: skip
    cursor = (await workflows.read("?limit=2"))["pagination"]["next_cursor"]
    await workflows.create_job()  # does not shift later pages
    assert await ids_of(workflows, f"cursor={cursor}") == job_ids[2::-1]


async def test_jobs_are_filtered_by_status_and_workflow(workflows: Workflows) -> None:
    await workflows.declare()
    job_ids = [await workflows.create_job() for _ in range(3)]
    plain = await workflows.create_job({"workflow": PLAIN.name})
    await workflows.run(job_ids[1], "sources")
    assert await ids_of(workflows, "status=running") == [job_ids[1]]
    assert await ids_of(workflows, "status=queued&limit=1") == [plain, job_ids[2], job_ids[0]]
    assert await ids_of(workflows, f"workflow={PLAIN.name}") == [plain]
    assert await ids_of(workflows, "workflow=nope") == []
    assert await ids_of(workflows, "status=running&workflow=plain_v1") == []
    filtered = await workflows.read("?status=queued")
    assert filtered["pagination"]["total"] is None, "filtered jobs are not counted"


@pytest.mark.parametrize("scan_size", [2, 3, 200])
async def test_pages_have_no_gap_and_no_overlap(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch, scan_size: int
) -> None:
    """Also if many were created at the same time."""
    monkeypatch.setattr(listing, "SCAN_SIZE", scan_size)
    job_ids = [await workflows.create_job() for _ in range(7)]
    times = dict(zip(job_ids, (1, 2, 2, 2, 2, 2, 3)))
    await workflows.redis.delete(KEYS.index())
    await workflows.redis.zadd(KEYS.index(), times)
    for limit in (1, 2, 3, 7):
        assert await ids_of(workflows, f"limit={limit}") == job_ids[::-1]
        skipped = await workflows.read(f"?limit={limit}&offset=2")
        assert [job["job_id"] for job in skipped["jobs"]] == job_ids[::-1][2 : 2 + limit]


@pytest.fixture
def short_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SCAN_SIZE", 2)
    monkeypatch.setattr(listing, "MOST_LOOKS", 2)


@pytest.mark.usefixtures("short_scans")
async def test_expired_jobs_are_skipped(workflows: Workflows) -> None:
    """A request scans a limited number, however many have expired."""
    job_ids = [await workflows.create_job() for _ in range(9)]
    for job_id in job_ids[2:]:
        await workflows.redis.delete(KEYS.job(job_id))
    first = await workflows.read("?limit=2")
    assert (first["jobs"], first["pagination"]["has_more"]) == ([], True)
    assert await ids_of(workflows, "limit=2") == job_ids[1::-1]


@pytest.mark.usefixtures("short_scans")
async def test_a_large_offset_continues_on_the_next_pages(workflows: Workflows) -> None:
    job_ids = [await workflows.create_job() for _ in range(12)]
    await workflows.redis.delete(KEYS.job(job_ids[8]))
    there = [job_id for job_id in job_ids[::-1] if job_id != job_ids[8]]
    for offset in (0, 1, 3, 4, 8, 11, 10_000_000):
        page = await workflows.read(f"?limit=2&offset={offset}")
        found, cursor = page["jobs"], page["pagination"]["next_cursor"]
        rest = await ids_of(workflows, f"limit=2&cursor={cursor}") if cursor else []
        assert [job["job_id"] for job in found] + rest == there[offset:]


async def test_tenants_see_only_their_own_jobs(workflows: Workflows) -> None:
    gateway = workflows.gateway
    scopes = ("jobs:write", "jobs:read")
    own_key = bearer(await key_for(gateway, "a", scopes=scopes, tenant="own"))
    other_key = bearer(await key_for(gateway, "b", scopes=scopes, tenant="other"))
    without_tenant = await workflows.create_job()
    a = await workflows.create_job(**own_key)
    b = await workflows.create_job(**other_key)
    assert await ids_of(workflows, **own_key) == [a]
    assert await ids_of(workflows, **other_key) == [b]
    assert await ids_of(workflows) == [b, a, without_tenant]
    assert (await workflows.get("", **own_key)).json()["pagination"]["total"] == 1


async def numbers_of(workflows: Workflows, job_id: str, query: str) -> list[int]:
    """Numbers over all pages."""
    pages = await workflows.pages(f"/{job_id}/events?{query}")
    for page in pages[:-1]:
        assert page["pagination"]["next_cursor"] == f"evt_{page['events'][-1]['seq']}"
    return [event["seq"] for page in pages for event in page["events"]]


async def test_events_describe_each_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"metadata": {"a": 1}})
    await workflows.run(job_id, "sources", things(2), "Read 2 sources")
    answer = await workflows.read(f"/{job_id}/events")
    assert list(answer) == ["success", "job_id", "events", "pagination"]
    assert answer["job_id"] == job_id
    created, started, completed = answer["events"]
    assert list(created) == ["id", "seq", "type", "at", "step", "data"]
    assert (created["id"], created["seq"], created["type"]) == ("1-0", 1, "job.created")
    assert (created["step"], created["data"]) == (None, {"metadata": {"a": 1}})
    assert (started["type"], started["step"]) == ("step.started", "sources")
    assert completed["type"] == "step.completed"
    assert completed["data"]["summary"] == "Read 2 sources"
    assert completed["at"].endswith("Z")
    assert answer["pagination"] == {
        "count": 3, "has_more": False, "next_cursor": None, "total": 3,
    }  # fmt: skip


async def test_pages_of_events_have_no_gap(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    running = await workflows.start(job_id, "sources")
    for done in range(8):
        await workflows.store.progress(running, done, 8)
    for limit in (1, 2, 3, 9, 10, 500):
        assert await numbers_of(workflows, job_id, f"limit={limit}") == list(range(1, 11))
    assert await numbers_of(workflows, job_id, "offset=7") == [8, 9, 10]
    answer = await workflows.read(f"/{job_id}/events?limit=2&offset=3")
    assert [event["seq"] for event in answer["events"]] == [4, 5]
    assert (await workflows.read(f"/{job_id}/events?offset=50"))["events"] == []
    assert await numbers_of(workflows, job_id, "cursor=evt_8&limit=1") == [9, 10]
    assert await numbers_of(workflows, job_id, "cursor=evt_0") == list(range(1, 11))
    assert (await workflows.read(f"/{job_id}/events?cursor=evt_99"))["events"] == []


async def test_invalid_events_are_tolerated(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    key = KEYS.events(job_id)
    await workflows.redis.xadd(key, {"type": b"\xff", "ts": "x", "data": b"{"}, id="2-0")
    await workflows.redis.xadd(key, {"a": "b"}, id="3-7")
    events = (await workflows.read(f"/{job_id}/events"))["events"]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert events[1]["data"] == {"_raw": "{"}
    assert events[2]["data"] == {}


#: By path: valid cursors of other lists, and malformed ones.
CURSORS: dict[str, tuple[str, ...]] = {
    f"{JOBS}": ("evt_3", "job_3"),
    f"{JOBS}/JOB/results": ("", "evt_1", "res_", "res_x", "res_-1", "res_0x1", "res_" + "9" * 20),
    f"{JOBS}/JOB/events": ("res_1", "1-0", "evt_1-0"),
    DLQ: ("evt_1", "dlq_x", "dlq_0-0"),
    DELIVERIES: ("dlq_1-1", "due_", "due_5", "due_5_0", "due_-1_1", "due_x_1"),
}
FIRST = ("job_1_20260214_001", "res_1", "evt_1", "dlq_1-1", "due_5_1")


async def test_invalid_query_parameters_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    get = workflows.gateway.client.get
    for (path, cursors), first in zip(CURSORS.items(), FIRST):
        target, named = path.replace("JOB", job_id), "JOB" in path
        for query, field in (
            *(("limit=0", "limit"), ("limit=501", "limit"), ("limit=x", "limit")),
            *(("offset=-1", "offset"), ("offset=99999999999999999999", "offset")),
        ):
            envelope = check_envelope(
                await get(f"{target}?{query}"), 422, "validation_error", field
            )
            assert envelope["job_id"] == (job_id if named else None)
        for cursor in cursors:
            answer = await get(f"{target}?cursor={cursor}")
            check_envelope(answer, 400, "invalid_cursor", "cursor")
        answer = await get(f"{target}?cursor={first}&offset=1")
        check_envelope(answer, 400, "pagination_conflict", "offset")
    for path, code, field in (
        ("?status=canceled", "validation_error", "status"),
        (f"/{job_id}/results?status=nope", "validation_error", "status"),
        (f"/{job_id}/results?step=nope", "unknown_step", "step"),
        (f"/{job_id}/results?step={'x' * 100}", "validation_error", "step"),
    ):
        check_envelope(await workflows.get(path), 422, code, field)
    await workflows.redis.set(KEYS.index(), "x")
    check_envelope(await workflows.get(""), 503, "store_corrupt")
