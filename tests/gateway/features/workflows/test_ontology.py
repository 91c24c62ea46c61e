"""Editing a proposal: members, versions and the resulting state."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from common.features.workflows.types import NewItem
from tests.support.gateway.asgi import Answer
from tests.support.gateway.workflow_actions import items, reviewing, send, statuses
from tests.support.gateway.workflows import Workflows, check_envelope, things

pytestmark = pytest.mark.fakeredis_only

MOVE: dict[str, Any] = {"kind": "file_move", "from": "in/a.txt", "to": "notes/a.txt"}

MOVES: list[tuple[dict[str, Any], str]] = [
    ({"proposed_folder": "archive/2026"}, "archive/2026/a.txt"),
    ({"proposed_folder": "/archive/"}, "archive/a.txt"),
    ({"proposed_folder": ""}, "a.txt"),
    ({"proposed_filename": "b.txt"}, "notes/b.txt"),
    ({"proposed_folder": "x", "proposed_filename": "b.txt"}, "x/b.txt"),
]
NOWHERE: list[dict[str, Any]] = [
    {"proposed_folder": "../out"},
    {"proposed_folder": "a/../../out"},
    {"proposed_filename": "../b"},
    {"proposed_filename": ".."},
    {"proposed_filename": "a/b"},
    {"proposed_filename": "a\0b"},
    {"proposed_filename": "b", "to": "c"},
]
MISFITS: list[Any] = [
    {},
    {"version": 1},
    {"idempotency_key": "k"},
    {"to": ""},
    {"to": 3},
    {"to": ["a", "b"]},
    {"to": "x" * 4001},
    {"confidence": 1.5},
    {"confidence": "0.5"},
    {"auto_approve": "no"},
    {"to": "x", "version": 0},
    {"kind": "term_add"},
    {"to": None},
    {"to": None, "version": 1, "idempotency_key": "k"},
    {"to": " \t\n"},
    {"from": "\u2003"},
    [],
]


async def edit(
    workflows: Workflows, job_id: str, item: str | int, body: object, **headers: str
) -> Answer:
    return await send(
        workflows, f"/{job_id}/proposals/{item}/ontology", body, method="PATCH", **headers
    )


async def with_proposal(workflows: Workflows, payload: dict[str, Any]) -> str:
    """A job with this one proposal."""
    job_id = await workflows.create_job()
    for step in ("sources", "index_extract", "summarize"):
        await workflows.run(job_id, step, things(1))
    item = NewItem(json.dumps(payload).encode(), "proposed", 0.5)
    await workflows.run(job_id, "proposals", [item])
    return job_id


async def test_an_edit_changes_and_approves_the_proposal(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    body = {"to": "dead letter queue", "confidence": 0.9, "rationale": "as written", "note": "n"}
    answer = await edit(workflows, job_id, "p_002", body)
    response = answer.json()
    assert (answer.status, answer.header("etag")) == (200, '"2"')
    assert (response["success"], response["job_id"], response["step"]) == (
        True,
        job_id,
        "proposals",
    )
    assert response["item"] == (await items(workflows, job_id))["p_002"]
    assert response["item"]["payload"] == {"from": "t2", **body}
    assert (response["item"]["status"], response["item"]["version"]) == ("approved", 2)
    assert response["item"]["undo_token"] == "undo_p_002"
    assert response["ontology_edits"] == {"supported": True, "granular": True, "pending_changes": 1}
    assert response["errors"] == []


async def test_an_edit_of_an_old_version_is_rejected(workflows: Workflows) -> None:
    job_id = await reviewing(workflows, 5)

    async def on(item: int, by: str, version: int, to: str) -> Answer:
        if by == "body":
            return await edit(workflows, job_id, item, {"to": to, "version": version})
        return await edit(workflows, job_id, item, {"to": to}, if_match=by.format(version))

    for item, by in enumerate(("body", '"{}"', 'W/"{}"', "{}"), 1):
        assert (await on(item, by, 1, "first")).status == 200
        response = check_envelope(await on(item, by, 1, "second"), 409, "version_conflict")
        assert response["errors"][0]["item_id"] == f"p_00{item}"
        assert (response["item"]["version"], response["item"]["payload"]["to"]) == (2, "first")
        assert (await on(item, by, 2, "third")).json()["item"]["payload"]["to"] == "third"


async def test_concurrent_edits_are_all_kept(workflows: Workflows) -> None:
    """Without a version, each edit applies to the newest one."""
    job_id = await reviewing(workflows, 2)
    bodies: list[dict[str, Any]] = [{"to": "t"}, {"from": "f"}, {"rationale": "r"}, {"note": "n"}]
    answers = await asyncio.gather(*(edit(workflows, job_id, 1, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * 4
    item = (await items(workflows, job_id))["p_001"]
    assert item["payload"] == {"to": "t", "from": "f", "rationale": "r", "note": "n"}
    assert item["version"] == 5


async def test_folder_and_filename_change_the_target(workflows: Workflows) -> None:
    job_id = await with_proposal(workflows, MOVE)
    before = (await items(workflows, job_id))["p_001"]
    for number, (body, to) in enumerate(MOVES):
        answer = await edit(workflows, job_id, 1, body)
        assert answer.json()["item"]["payload"] == {**MOVE, "to": to}
        token = answer.json()["undo_token"]
        await workflows.post(f"/{job_id}/undo", {"undo_token": token})
        undone = (await items(workflows, job_id))["p_001"]
        assert undone == {**before, "version": 3 + 2 * number}
    for body in NOWHERE:
        check_envelope(await edit(workflows, job_id, 1, body), 422, "validation_error")
    other = await reviewing(workflows)
    answer = await edit(workflows, other, 1, {"proposed_folder": "x"})
    check_envelope(answer, 422, "validation_error", "proposed_folder")


async def test_invalid_requests_are_rejected(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    for body in MISFITS:
        check_envelope(await edit(workflows, job_id, 1, body), 422, "validation_error")
    for header in ('"x"', "0", "-1", '"1", "2"'):
        answer = await edit(workflows, job_id, 1, {"to": "x"}, if_match=header)
        check_envelope(answer, 422, "validation_error", "if-match")
    body = {"to": "x", "version": 1}
    answer = await edit(workflows, job_id, 1, body, if_match='"2"')
    check_envelope(answer, 422, "validation_error", "version")
    for item in ("p_009", 9, "unknown", "s_001%2e"):
        check_envelope(await edit(workflows, job_id, item, {"to": "x"}), 404, "item_not_found")
    check_envelope(await edit(workflows, "wf_20200101_001", 1, {"to": "x"}), 404)
    check_envelope(await edit(workflows, job_id, "s_001", {"to": "x"}), 409, "not_reviewable")
    assert await statuses(workflows, job_id) == ["proposed"] * 3
    assert (await edit(workflows, job_id, 1, body, if_match="*")).status == 200


async def test_an_edited_item_may_not_exceed_its_limit(workflows: Workflows) -> None:
    job_id = await with_proposal(workflows, {"to": ["a"]})
    for variants, status in ((16, 200), (17, 422)):
        body = {"to": ["x" * 4000] * variants, "auto_approve": False}
        answer = await edit(workflows, job_id, 1, body)
        assert answer.status == status
    assert "65536 at most" in check_envelope(answer, 422, "validation_error")["detail"]
    item = (await items(workflows, job_id))["p_001"]
    assert (item["version"], item["status"]) == (2, "proposed"), "it was not approved"
    assert len(item["payload"]["to"]) == 16
