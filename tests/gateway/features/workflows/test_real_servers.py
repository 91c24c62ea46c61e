"""Workflow reads on real servers: trimmed event logs and keys of another type."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.common.contracts.workflow.statuses import EVENTS_KEPT
from tests.gateway.features.workflows.test_stream import numbers_of
from tests.support.gateway.workflows import KEYS, Workflows, check_envelope, proposals, things

pytestmark = pytest.mark.real_redis


async def test_trimmed_events_are_skipped(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    running = await workflows.start(job_id, "sources")
    for done in range(8):
        await workflows.store.progress(running, done, 8)
    await workflows.redis.xtrim(KEYS.events(job_id), maxlen=4, approximate=False)
    assert await numbers_of(workflows, job_id, "limit=3") == [7, 8, 9, 10]
    assert await numbers_of(workflows, job_id, "cursor=evt_2&limit=3") == [7, 8, 9, 10]
    assert await numbers_of(workflows, job_id, "offset=1") == [8, 9, 10]
    assert (await workflows.read(f"/{job_id}/events"))["pagination"]["total"] == 4


async def test_pagination_matches_the_lists(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.run(job_id, "sources", things(100))
    await _same_pages(workflows, job_id, has_more=(False, False))
    await workflows.run(job_id, "index_extract", things(3))
    await workflows.run(job_id, "summarize")
    running = await workflows.start(job_id, "proposals")
    for done in range(1, 216):
        await workflows.store.progress(running, done, 215)
    await workflows.complete(running, proposals(7))
    await _same_pages(workflows, job_id, has_more=(True, True))
    await workflows.redis.xtrim(KEYS.events(job_id), maxlen=211, approximate=False)
    pages = await _same_pages(workflows, job_id, has_more=(True, True))
    assert pages["events"]["total"] == 211 < EVENTS_KEPT


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


PATHS = ("status", "results", "results?step=proposals", "results?status=proposed", "events")


async def test_keys_of_another_type_are_reported(workflows: Workflows) -> None:
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
