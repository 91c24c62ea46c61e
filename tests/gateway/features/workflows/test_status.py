"""`GET …/status`: every member as the job advances; reading changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.workflow.statuses import EVENTS_KEPT
from common.features.workflows import reader as reading
from common.features.workflows.store import WorkflowStore
from tests.gateway.features.workflows import seed_shapes
from tests.gateway.features.workflows.kit import (
    KEYS,
    PLAIN,
    Workflows,
    check_envelope,
    proposals,
    things,
)

ERRORS = b'[{"code":"step_failed","message":"no luck","source":"s_001"}]'


async def test_progress_has_the_value_of_the_example(workflows: Workflows) -> None:
    """Sources are complete, four fifths of the extraction are done: 0.42."""
    job_id = await workflows.create_job()
    await workflows.run(job_id, "sources", things(3), "Read 3 sources")
    assert (await workflows.status(job_id))["progress"] == 0.1
    running = await workflows.start(job_id, "index_extract")
    await workflows.store.progress(running, 4, 5)
    job = await workflows.status(job_id)
    assert (job["progress"], job["current_step"]) == (0.42, "index_extract")
    assert (job["status"], job["draft_state"]) == ("running", "dirty")
    assert [step["status"] for step in job["stepper"][:3]] == ["complete", "running", "not_started"]
    assert job["stepper"][1]["execution_id"] == running.execution
    metadata = job["metadata"]
    assert (metadata["source_count"], metadata["proposal_count"]) == (3, 0)
    assert metadata["completed_steps"] == ["sources"]
    outcome = metadata["last_result_by_step"]["sources"]
    assert list(outcome) == ["summary", "count", "completed_at"]
    assert (outcome["summary"], outcome["count"]) == ("Read 3 sources", 3)


async def test_the_response_has_the_shape_of_the_contract(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"webhook_url": "https://example/callback"})
    await workflows.until_proposals(job_id, 5)
    await workflows.redis.hset(
        KEYS.job(job_id), mapping={"webhook_status": "ok", "webhook_ms": "1771083240000"}
    )
    await workflows.redis.lpush(KEYS.undo(job_id), "undo_00000001", "undo_00000002")
    answer = await workflows.read(f"/{job_id}/status")
    answer["job"]["idempotency_key"] = "6d3f..."
    shown = seed_shapes.job_status()
    shown["job"]["pagination"]["events"]["next_cursor"] = None
    assert seed_shapes.extras(answer, shown) == {
        "job.stepper.attempt", "job.stepper.execution_id", "job.stepper.error",
        "job.pagination.events.total", "job.pagination.results.total",
        "job.metadata.completed_steps", "job.metadata.last_result_by_step",
    }  # fmt: skip
    assert answer["job"]["webhook"]["last_delivery_at"] == "2026-02-14T15:34:00Z"
    assert answer["job"]["undo"] == {"depth": 2, "last_undo_token": "undo_00000002"}
    assert answer["job"]["metadata"]["proposal_count"] == 5


async def test_progress_of_a_review_follows_its_decisions(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 4)
    assert (await workflows.status(job_id))["progress"] == 0.8
    counts = {"proposed": "3", "approved": "1", "rejected": "1"}
    await workflows.redis.hset(KEYS.job(job_id), mapping=counts)
    await workflows.redis.hset(KEYS.steps(job_id), "review.status", "waiting_input")
    assert (await workflows.status(job_id))["progress"] == 0.82  # 0.80 + 0.05 * 2 / 5


async def test_progress_is_one_only_if_the_job_is_complete(fake_workflows: Workflows) -> None:
    await fake_workflows.declare()
    job_id = await fake_workflows.create_job({"workflow": PLAIN.name})
    await fake_workflows.run(job_id, "fetch")
    running = await fake_workflows.start(job_id, "store")
    await fake_workflows.store.progress(running, 1000, 1000)
    job = await fake_workflows.status(job_id)
    assert (job["progress"], job["completed_at"]) == (0.99, None)
    await fake_workflows.complete(running)
    job = await fake_workflows.status(job_id)
    assert (job["progress"], job["status"]) == (1.0, "completed")
    assert job["completed_at"] == job["updated_at"]


async def test_a_failed_step_has_its_error(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    running = await workflows.start(job_id, "sources")
    await workflows.store.fail(running, ERRORS)
    job = await workflows.status(job_id)
    assert (job["status"], job["draft_state"]) == ("failed", "failed")
    step = job["stepper"][0]
    assert step["status"] == "failed"
    assert list(step["error"]) == ["code", "message", "field", "item_id", "source"]
    assert (step["error"]["code"], step["error"]["message"]) == ("step_failed", "no luck")


async def test_reading_changes_nothing(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 2)
    before = await workflows.gateway.snapshot()
    first = await workflows.get(f"/{job_id}/status")
    for path in (f"/{job_id}/results", f"/{job_id}/events", f"/{job_id}/status", ""):
        await workflows.read(path)
    assert (await workflows.get(f"/{job_id}/status")).body == first.body
    assert await workflows.gateway.snapshot() == before


async def test_an_unchanged_job_gets_304(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    first = await fake_workflows.get(f"/{job_id}/status")
    etag = first.header("etag") or ""
    again = await fake_workflows.get(f"/{job_id}/status", if_none_match=f'"x", W/{etag}')
    assert (again.status, again.body, again.header("etag")) == (304, b"", etag)
    await fake_workflows.run(job_id, "sources")
    changed = await fake_workflows.get(f"/{job_id}/status", if_none_match=etag)
    assert changed.status == 200
    assert changed.header("etag") != etag


async def test_pagination_matches_the_lists(real_workflows: Workflows) -> None:
    workflows = real_workflows
    job_id = await workflows.create_job()
    await workflows.run(job_id, "sources", things(100))
    await _same_pages(workflows, job_id, has_more=(False, False))
    await workflows.run(job_id, "index_extract", things(3))
    await workflows.run(job_id, "summarize")
    running = await workflows.start(job_id, "proposals")
    await _fill_events(workflows.store, running, 200)
    await workflows.complete(running, proposals(7))
    await _same_pages(workflows, job_id, has_more=(True, True))


async def test_pagination_matches_a_trimmed_log(real_workflows: Workflows) -> None:
    job_id = await real_workflows.create_job()
    running = await real_workflows.start(job_id, "sources")
    await _fill_events(real_workflows.store, running, 230)
    await real_workflows.redis.xtrim(KEYS.events(job_id), maxlen=211, approximate=False)
    pages = await _same_pages(real_workflows, job_id, has_more=(True, False))
    assert pages["events"]["total"] == 211 < EVENTS_KEPT


async def _fill_events(store: WorkflowStore, running: Any, count: int) -> None:
    for done in range(1, count + 1):
        await store.progress(running, done, count)


async def _same_pages(
    workflows: Workflows, job_id: str, has_more: tuple[bool, bool]
) -> dict[str, Any]:
    pages: dict[str, Any] = (await workflows.status(job_id))["pagination"]
    events = await workflows.read(f"/{job_id}/events")
    results = await workflows.read(f"/{job_id}/results")
    assert pages["events"] == events["pagination"]
    assert pages["results"] == results["result"]["pagination"]
    assert (pages["events"]["has_more"], pages["results"]["has_more"]) == has_more
    assert pages["events"]["count"] == len(events["events"])
    assert pages["results"]["count"] == len(results["result"]["items"])
    return pages


async def test_an_invalid_id_is_not_found(fake_workflows: Workflows) -> None:
    for job_id in ("x", "wf_1_1", "wf_20260214_01", "wf_20260214_" + "1" * 70):
        check_envelope(await fake_workflows.get(f"/{job_id}/status"), 404, "job_not_found")


async def test_an_expired_job_is_not_found(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    await fake_workflows.redis.delete(KEYS.steps(job_id))
    check_envelope(await fake_workflows.get(f"/{job_id}/status"), 404, "job_not_found")
    await fake_workflows.redis.delete(KEYS.job(job_id))
    check_envelope(await fake_workflows.get(f"/{job_id}/status"), 404, "job_not_found")


PATHS = ("status", "results", "results?step=proposals", "results?status=proposed", "events")


async def test_keys_of_another_type_are_reported(real_workflows: Workflows) -> None:
    workflows = real_workflows
    for key in ("steps", "undo", "events", "order", "items", "states", "undoable"):
        job_id = await workflows.create_job()
        await workflows.until_proposals(job_id, 2)
        name = getattr(KEYS, key)(job_id)
        await workflows.redis.delete(name)
        await workflows.redis.set(name, "another type")
        answers = [await workflows.get(f"/{job_id}/{path}") for path in PATHS]
        assert {answer.status for answer in answers} <= {200, 503}, key
        refused = [answer for answer in answers if answer.status == 503]
        assert refused, key
        for answer in refused:
            check_envelope(answer, 503, "store_corrupt")
    assert (await workflows.get("")).status == 200, "the list still works"


FIELDS: list[tuple[str, bytes, int]] = [
    ("definition", b"{", 503),
    ("definition", b'{"name":"x"}', 503),
    ("status", b"strange", 503),
    ("metadata", b"{nope", 200),
    ("metadata", b"[1]", 200),
    ("review", b"\xff", 200),
    ("review", b'{"mode":[],"timeout_s":"x"}', 200),
    ("started_ms", b"-7", 200),
    ("updated_ms", b"9" * 30, 200),
    ("completed_ms", b"9" * 18, 200),
    ("event_seq", b"x", 200),
    ("webhook_status", b"?", 200),
    ("current_step", b"nope", 200),
    ("draft_state", b"", 200),
]


async def test_invalid_job_fields_are_tolerated_or_reported(fake_workflows: Workflows) -> None:
    for field, value, status in FIELDS:
        job_id = await fake_workflows.create_job()
        await fake_workflows.redis.hset(KEYS.job(job_id), field, value)
        for path in ("status", "results", "events"):
            answer = await fake_workflows.get(f"/{job_id}/{path}")
            assert answer.status == status, (field, value, path)
            if status == 503:
                check_envelope(answer, 503, "store_corrupt")
    assert (await fake_workflows.get("")).status == 200


async def test_invalid_step_fields_are_tolerated(fake_workflows: Workflows) -> None:
    for field, value in (
        ("errors", b"{"), ("errors", b'["x",{"code":3}]'), ("status", b"?"), ("done", b"x"),
    ):  # fmt: skip
        job_id = await fake_workflows.create_job()
        await fake_workflows.store.fail(await fake_workflows.start(job_id, "sources"), ERRORS)
        await fake_workflows.redis.hset(KEYS.steps(job_id), f"sources.{field}", value)
        for path in ("status", "results"):
            assert (await fake_workflows.get(f"/{job_id}/{path}")).status == 200


async def test_a_reused_id_does_not_get_cached_steps(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    await fake_workflows.status(job_id)
    await fake_workflows.redis.flushall()
    await fake_workflows.declare()
    fake_workflows.gateway.workflows.catalog._refreshed_at = float("-inf")
    assert await fake_workflows.create_job({"workflow": PLAIN.name}) == job_id
    job = await fake_workflows.status(job_id)
    assert [step["name"] for step in job["stepper"]] == ["fetch", "store"]


async def test_the_cache_is_bounded(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_CACHED_JOBS", 2)
    job_ids = [await fake_workflows.create_job() for _ in range(4)]
    for job_id in job_ids:
        assert (await fake_workflows.status(job_id))["job_id"] == job_id
    assert len(fake_workflows.gateway.workflows.reader._steps) == 2
