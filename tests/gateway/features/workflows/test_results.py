"""`GET …/results`: items of one step or all, page by page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.features.workflows import reader as reading
from common.features.workflows.types import NewItem
from tests.gateway.features.workflows import seed_shapes
from tests.support.gateway.workflows import KEYS, Workflows, things

pytestmark = pytest.mark.fakeredis_only


async def ids_of(workflows: Workflows, path: str) -> list[str]:
    """Ids over all pages, each page checked."""
    found: list[str] = []
    cursor = ""
    while True:
        result = (await workflows.read(path + cursor))["result"]
        page = result["pagination"]
        assert page["count"] == len(result["items"])
        assert page["has_more"] is (page["next_cursor"] is not None)
        found += [item["id"] for item in result["items"]]
        if not page["has_more"]:
            return found
        assert result["items"]
        cursor = ("&" if "?" in path else "?") + f"cursor={page['next_cursor']}"


async def test_the_response_has_the_shape_of_the_contract(workflows: Workflows) -> None:
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
    assert seed_shapes.extras(answer, seed_shapes.result_schema()) == {"result.pagination.total"}


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
    for number in (2, 3, 7, 9):
        state = f"approved 2 0 {number / 1000:.6f}"
        await workflows.redis.hset(KEYS.states(job_id), f"p_{number:03d}", state)
    path = f"/{job_id}/results?step=proposals&status=approved"
    approved = ["p_002", "p_003", "p_007", "p_009"]
    for limit in ("", "&limit=1", "&limit=4"):
        assert await ids_of(workflows, path + limit) == approved
    page = (await workflows.read(f"{path}&limit=2&offset=1"))["result"]
    assert [item["id"] for item in page["items"]] == approved[1:3]
    assert page["pagination"]["total"] == 4
    for status, total in (("complete", 6), ("failed", 0)):
        found = (await workflows.read(f"/{job_id}/results?status={status}"))["result"]
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
