"""`GET …/events`: the events of a job, page by page."""

from __future__ import annotations

from tests.gateway.features.workflows.kit import KEYS, Workflows, check_envelope, things


async def numbers_of(workflows: Workflows, job_id: str, query: str) -> list[int]:
    """Numbers over all pages."""
    found: list[int] = []
    cursor = ""
    while True:
        answer = await workflows.read(f"/{job_id}/events?{query}{cursor}")
        page = answer["pagination"]
        assert page["count"] == len(answer["events"])
        found += [event["seq"] for event in answer["events"]]
        if not page["has_more"]:
            assert page["next_cursor"] is None
            return found
        assert page["next_cursor"] == f"evt_{found[-1]}"
        cursor = f"&cursor={page['next_cursor']}"


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


async def test_pages_have_no_gap_and_no_overlap(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    running = await fake_workflows.start(job_id, "sources")
    for done in range(4):
        await fake_workflows.store.progress(running, done, 4)
    for limit in (1, 2, 3, 6, 7, 500):
        assert await numbers_of(fake_workflows, job_id, f"limit={limit}") == [1, 2, 3, 4, 5, 6]


async def test_offsets_and_cursors_select_a_page(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    running = await workflows.start(job_id, "sources")
    for done in range(8):
        await workflows.store.progress(running, done, 8)
    assert await numbers_of(workflows, job_id, "offset=7") == [8, 9, 10]
    answer = await workflows.read(f"/{job_id}/events?limit=2&offset=3")
    assert [event["seq"] for event in answer["events"]] == [4, 5]
    assert (await workflows.read(f"/{job_id}/events?offset=50"))["events"] == []
    assert await numbers_of(workflows, job_id, "cursor=evt_8&limit=1") == [9, 10]
    assert await numbers_of(workflows, job_id, "cursor=evt_0") == list(range(1, 11))
    assert (await workflows.read(f"/{job_id}/events?cursor=evt_99"))["events"] == []


async def test_trimmed_events_are_skipped(real_workflows: Workflows) -> None:
    job_id = await real_workflows.create_job()
    running = await real_workflows.start(job_id, "sources")
    for done in range(8):
        await real_workflows.store.progress(running, done, 8)
    await real_workflows.redis.xtrim(KEYS.events(job_id), maxlen=4, approximate=False)
    assert await numbers_of(real_workflows, job_id, "limit=3") == [7, 8, 9, 10]
    assert await numbers_of(real_workflows, job_id, "cursor=evt_2&limit=3") == [7, 8, 9, 10]
    assert await numbers_of(real_workflows, job_id, "offset=1") == [8, 9, 10]
    assert (await real_workflows.read(f"/{job_id}/events"))["pagination"]["total"] == 4


async def test_invalid_events_are_tolerated(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    key = KEYS.events(job_id)
    await fake_workflows.redis.xadd(key, {"type": b"\xff", "ts": "x", "data": b"{"}, id="2-0")
    await fake_workflows.redis.xadd(key, {"a": "b"}, id="3-7")
    events = (await fake_workflows.read(f"/{job_id}/events"))["events"]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert events[1]["data"] == {"_raw": "{"}
    assert events[2]["data"] == {}


MISFITS = [
    ("limit=501", 422, "validation_error", "limit"),
    ("cursor=res_1", 400, "invalid_cursor", "cursor"),
    ("cursor=1-0", 400, "invalid_cursor", "cursor"),
    ("cursor=evt_1-0", 400, "invalid_cursor", "cursor"),
    ("cursor=evt_1&offset=2", 400, "pagination_conflict", "offset"),
]


async def test_invalid_query_parameters_are_rejected(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    for query, status, code, field in MISFITS:
        answer = await fake_workflows.get(f"/{job_id}/events?{query}")
        check_envelope(answer, status, code, field)
