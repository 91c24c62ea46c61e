"""`GET …/status` and `GET …/results`; workflow jobs in `/metrics` and `/v1/status`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.common.features.workflows import reader as reading
from sluice.common.features.workflows.types import NewItem
from tests.gateway.features.workflows.seed_shapes import example, extras
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.gateway.harness import Gateway
from tests.support.gateway.workflows import KEYS, PLAIN, Workflows, check_envelope, things

pytestmark = pytest.mark.fakeredis_only

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
    shown = example("success", "job")
    shown["job"]["pagination"]["events"]["next_cursor"] = None
    assert extras(answer, shown) == {
        "job.stepper.attempt", "job.stepper.execution_id", "job.stepper.error",
        "job.pagination.events.total", "job.pagination.results.total",
        "job.metadata.completed_steps", "job.metadata.last_result_by_step",
    }  # fmt: skip
    assert answer["job"]["webhook"]["last_delivery_at"] == "2026-02-14T15:34:00Z"
    assert answer["job"]["undo"] == {"depth": 2, "last_undo_token": "undo_00000002"}
    assert answer["job"]["metadata"]["proposal_count"] == 5


async def test_progress_follows_reviews_and_ends_at_one(workflows: Workflows) -> None:
    await workflows.declare()
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 4)
    assert (await workflows.status(job_id))["progress"] == 0.8
    counts = {"proposed": "3", "approved": "1", "rejected": "1"}
    await workflows.redis.hset(KEYS.job(job_id), mapping=counts)
    await workflows.redis.hset(KEYS.steps(job_id), "review.status", "waiting_input")
    assert (await workflows.status(job_id))["progress"] == 0.82  # 0.80 + 0.05 * 2 / 5
    job_id = await workflows.create_job({"workflow": PLAIN.name})
    await workflows.run(job_id, "fetch")
    running = await workflows.start(job_id, "store")
    await workflows.store.progress(running, 1000, 1000)
    job = await workflows.status(job_id)
    assert (job["progress"], job["completed_at"]) == (0.99, None)
    await workflows.complete(running)
    job = await workflows.status(job_id)
    assert (job["progress"], job["status"]) == (1.0, "completed")
    assert job["completed_at"] == job["updated_at"]
    job_id = await workflows.create_job()
    await workflows.store.fail(await workflows.start(job_id, "sources"), ERRORS)
    job = await workflows.status(job_id)
    assert (job["status"], job["draft_state"]) == ("failed", "failed")
    step = job["stepper"][0]
    assert step["status"] == "failed"
    assert list(step["error"]) == ["code", "message", "field", "item_id", "source"]
    assert (step["error"]["code"], step["error"]["message"]) == ("step_failed", "no luck")


async def test_reading_changes_nothing_and_an_unchanged_job_gets_304(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 2)
    before = await workflows.gateway.snapshot()
    first = await workflows.get(f"/{job_id}/status")
    for path in (f"/{job_id}/results", f"/{job_id}/events", f"/{job_id}/status", ""):
        await workflows.read(path)
    assert (await workflows.get(f"/{job_id}/status")).body == first.body
    etag = first.header("etag") or ""
    again = await workflows.get(f"/{job_id}/status", if_none_match=f'"x", W/{etag}')
    assert (again.status, again.body, again.header("etag")) == (304, b"", etag)
    assert await workflows.gateway.snapshot() == before
    await workflows.run(job_id, "sources")
    changed = await workflows.get(f"/{job_id}/status", if_none_match=etag)
    assert (changed.status, changed.header("etag") != etag) == (200, True)


async def test_an_unknown_or_expired_job_is_not_found(workflows: Workflows) -> None:
    expired, partly = await workflows.create_job(), await workflows.create_job()
    await workflows.redis.delete(KEYS.job(expired), KEYS.steps(expired), KEYS.steps(partly))
    unknown = ("x", "wf_1_1", "wf_20260214_01", "wf_20260214_" + "1" * 70)
    for job_id in (expired, partly, *unknown):
        check_envelope(await workflows.get(f"/{job_id}/status"), 404, "job_not_found")


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


async def test_invalid_fields_are_tolerated_or_reported(workflows: Workflows) -> None:
    for field, value, status in FIELDS:
        job_id = await workflows.create_job()
        await workflows.redis.hset(KEYS.job(job_id), field, value)
        for path in ("status", "results", "events"):
            answer = await workflows.get(f"/{job_id}/{path}")
            assert answer.status == status, (field, value, path)
            if status == 503:
                check_envelope(answer, 503, "store_corrupt")
    assert (await workflows.get("")).status == 200
    steps = (("errors", b"{"), ("errors", b'["x",{"code":3}]'), ("status", b"?"), ("done", b"x"))
    for field, value in steps:
        job_id = await workflows.create_job()
        await workflows.store.fail(await workflows.start(job_id, "sources"), ERRORS)
        await workflows.redis.hset(KEYS.steps(job_id), f"sources.{field}", value)
        for path in ("status", "results"):
            assert (await workflows.get(f"/{job_id}/{path}")).status == 200


async def test_cached_steps_are_bounded_and_belong_to_their_job(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_CACHED_JOBS", 2)
    job_ids = [await workflows.create_job() for _ in range(4)]
    for job_id in job_ids:
        assert (await workflows.status(job_id))["job_id"] == job_id
    assert len(workflows.gateway.workflows.reader._steps) == 2
    await workflows.status(job_ids[0])
    await workflows.redis.flushall()
    await workflows.declare()
    workflows.gateway.workflows.catalog._refreshed_at = float("-inf")
    assert await workflows.create_job({"workflow": PLAIN.name}) == job_ids[0]
    stepper = (await workflows.status(job_ids[0]))["stepper"]
    assert [step["name"] for step in stepper] == ["fetch", "store"]


async def test_jobs_and_deliveries_are_counted(gateway: Gateway) -> None:
    [check] = (await gateway.client.get("/v1/status")).json()["checks"]["workflows"]
    assert check["status"] == "pass"
    await gateway.redis.hset(KEYS.running, mapping={"a": "x", "b": "y"})
    await gateway.redis.zadd(KEYS.reviews, {"a": 1, "b": 2, "c": 3})
    await gateway.redis.zadd(KEYS.deliveries, {"a": 1})
    for _ in range(4):
        await gateway.redis.xadd(KEYS.dead_letters, {"x": "y"})
    names = (
        "workflows_running",
        "workflows_waiting_input",
        "webhooks_waiting",
        "webhooks_dlq_depth",
    )
    found = await scrape(gateway)
    assert [found.value(f"gw_{name}") for name in names] == [2, 3, 1, 4]
    [check] = (await gateway.client.get("/v1/status")).json()["checks"]["workflows"]
    assert check["status"] == "warn"
    assert "4 webhook deliveries failed after all attempts" in check["output"]
    assert (check["running"], check["waiting_input"], check["webhooks_waiting"]) == (2, 3, 1)


async def test_keys_of_another_type_are_left_out(gateway: Gateway) -> None:
    await gateway.redis.set(KEYS.running, "no hash")
    await gateway.redis.set(KEYS.dead_letters, "no stream")
    found = await scrape(gateway)
    assert "gw_workflows_running" not in found.names
    assert found.value("gw_workflows_waiting_input") == 0


async def ids_of(workflows: Workflows, path: str) -> list[str]:
    """Ids over all pages."""
    pages = await workflows.pages(path)
    return [item["id"] for page in pages for item in page["result"]["items"]]


async def test_results_have_the_shape_of_the_contract(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 128)
    redis = workflows.redis
    await redis.hset(KEYS.job(job_id), mapping={"last_operation": "approve_selected"})
    answer = await workflows.read(f"/{job_id}/results?step=proposals")
    result = answer["result"]
    assert result["summary"] == "Generated 128 proposals"
    assert result["items"][0] == {
        "id": "p_001",
        "type": "proposal",
        "status": "proposed",
        "payload": {"from": "t1", "to": "term 1"},
        "version": 1,
        "undo_token": None,
    }
    assert result["bulk"] == {"supported": True, "last_operation": "approve_selected"}
    assert result["ontology_edits"] == {"supported": True, "granular": True, "pending_changes": 0}
    assert result["pagination"] == {
        "count": 100, "has_more": True, "next_cursor": "res_106", "total": 128,
    }  # fmt: skip
    for item in result["items"]:
        assert item["undo_token"] is None
        item["undo_token"] = "undo_p_001"
    assert extras(answer, example("success", "step", "result")) == {"result.pagination.total"}


async def test_pages_have_no_gap_and_no_overlap(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 4)
    answer = await workflows.read(f"/{job_id}/results")
    assert answer["step"] == "proposals", "the current step"
    types = [item["type"] for item in answer["result"]["items"]]
    assert (types[0], types[-1]) == ("source", "proposal")
    whole = await ids_of(workflows, f"/{job_id}/results")
    steps = ["s_001", "s_002", "s_003", "x_001", "x_002", "sum_001"]
    assert whole == [*steps, "p_001", "p_002", "p_003", "p_004"]
    for limit, pages in ((1, 10), (3, 4), (5, 2), (10, 1), (11, 1), (500, 1)):
        assert await ids_of(workflows, f"/{job_id}/results?limit={limit}") == whole
        skipped = (pages - 1) * limit
        last = await workflows.read(f"/{job_id}/results?limit={limit}&offset={skipped}")
        assert last["result"]["pagination"]["has_more"] is False, "also on an exact multiple"
        assert [item["id"] for item in last["result"]["items"]] == whole[skipped:]
    for query in ("cursor=res_1&offset=0", "cursor=res_0", "offset=9999"):
        assert (await workflows.get(f"/{job_id}/results?{query}")).status == 200, query


async def test_a_cursor_keeps_its_position(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.run(job_id, "sources", things(5))
    first = await workflows.read(f"/{job_id}/results?limit=3")
    cursor = first["result"]["pagination"]["next_cursor"]
    await workflows.run(job_id, "index_extract", things(2))
    rest = await ids_of(workflows, f"/{job_id}/results?limit=2&cursor={cursor}")
    assert rest == ["s_004", "s_005", "x_001", "x_002"]
    await workflows.run(job_id, "sources", things(2))  # its items are replaced
    again = await workflows.read(f"/{job_id}/results?cursor={cursor}")
    assert [item["id"] for item in again["result"]["items"]] == ["s_001", "s_002"]


async def test_items_are_filtered_by_status(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_SIZE", 4)
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 9)
    approved = [f"p_{number:03d}" for number in (2, 3, 7, 9)]
    states = dict.fromkeys(approved, "approved 2 0 0.001000")
    await workflows.redis.hset(KEYS.states(job_id), mapping=states)
    path = f"/{job_id}/results?step=proposals&status=approved"
    for limit in ("", "&limit=1", "&limit=4"):
        assert await ids_of(workflows, path + limit) == approved
    page = (await workflows.read(f"{path}&limit=2&offset=1"))["result"]
    assert [item["id"] for item in page["items"]] == approved[1:3]
    for query, total in (
        ("step=proposals&status=approved", 4),
        ("status=complete", 6),
        ("status=failed", 0),
    ):
        found = (await workflows.read(f"/{job_id}/results?{query}"))["result"]
        assert found["pagination"]["total"] == total


async def test_only_undoable_items_have_a_token(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 3)
    redis = workflows.redis
    await redis.lpush(KEYS.undo(job_id), "undo_0000000b")
    await redis.hset(
        KEYS.undoable(job_id), mapping={"p_001": "undo_0000000b", "p_002": "undo_dropped"}
    )
    items = (await workflows.read(f"/{job_id}/results?step=proposals"))["result"]["items"]
    assert [item["undo_token"] for item in items] == ["undo_p_001", None, None]


async def test_only_reviewed_steps_have_bulk_operations(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.redis.hset(
        KEYS.job(job_id), mapping={"last_operation": "approve_all", "pending_changes": "4"}
    )
    for step in ("sources", "index_extract", "apply"):
        result = (await workflows.read(f"/{job_id}/results?step={step}"))["result"]
        assert result["bulk"] == {"supported": False, "last_operation": None}
        assert result["ontology_edits"] == {
            "supported": False, "granular": False, "pending_changes": 0,
        }  # fmt: skip
        assert result["summary"] == f"Step '{step}' has not been executed"
    for reviewed in ("proposals", "review"):
        result = (await workflows.read(f"/{job_id}/results?step={reviewed}"))["result"]
        assert result["bulk"] == {"supported": True, "last_operation": "approve_all"}
        assert result["ontology_edits"]["pending_changes"] == 4


async def test_errors_of_the_step_are_returned(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.run(
        job_id, "sources", errors=b'[{"code":"source_failed","message":"no file","source":"a.md"}]'
    )
    answer = await workflows.read(f"/{job_id}/results?step=sources")
    assert answer["success"] is True
    assert answer["errors"] == [
        {"code": "source_failed", "message": "no file", "field": None, "item_id": None,
         "source": "a.md"},
    ]  # fmt: skip
    running = await workflows.start(job_id, "index_extract")
    assert (await workflows.read(f"/{job_id}/results"))["result"]["summary"] == (
        "Step 'index_extract' is running"
    )
    await workflows.store.fail(running, b'[{"code":"step_failed","message":"too deep"}]')
    answer = await workflows.read(f"/{job_id}/results")
    assert answer["result"]["summary"] == "Step 'index_extract' failed: too deep"


async def test_invalid_items_are_tolerated(workflows: Workflows) -> None:
    redis = workflows.redis
    for state in (b"", b"proposed", b"strange 1 0 0.5", b"proposed x y z", b"\xff \xff \xff \xff"):
        job_id = await workflows.create_job()
        await workflows.run(job_id, "sources", things(3))
        await redis.hset(KEYS.states(job_id), "s_001", state)
        await redis.hset(KEYS.items(job_id), "s_002", b"{no json")
        await redis.hdel(KEYS.items(job_id), "s_003")
        await redis.zadd(KEYS.order(job_id), {"zzz": 99})
        found: list[Any] = (await workflows.read(f"/{job_id}/results"))["result"]["items"]
        assert {item["id"] for item in found} <= {"s_001", "s_002"}
        raw = next(item for item in found if item["id"] == "s_002")
        assert raw["payload"] == {"_raw": "{no json"}
    text = '{"n":123456789012345678901234567890,"text":"é\\u0000 \\"q\\"","deep":[[{"a":null}]]}'
    await workflows.run(job_id, "sources", [NewItem(text.encode())])
    [item] = (await workflows.read(f"/{job_id}/results"))["result"]["items"]
    assert item["payload"] == json.loads(text)
