"""PROGRESS and PUT: progress and data of a running step."""

from __future__ import annotations

import pytest

from common.features.workflows.types import WorkflowAnswer
from tests.common.features.workflows.kit import Flow

OK = WorkflowAnswer.OK


async def test_progress_is_stored_and_published(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    assert (await flow.store.progress(running, 3, 10)).answer is OK
    step = await flow.step(job_id, "first")
    assert (step["done"], step["total"]) == ("3", "10")
    kind, name, data = (await flow.events(job_id))[-1]
    assert (kind, name) == ("step.progress", "first")
    assert data == {"step": "first", "done": 3, "total": 10}


@pytest.mark.parametrize(("done", "total"), [(2, 10), (3, 10), (5, 20), (0, 0), (1, 0), (-1, 5)])
async def test_progress_never_decreases(flow: Flow, done: int, total: int) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.store.progress(running, 3, 10)
    before = await flow.snapshot()
    assert (await flow.store.progress(running, done, total)).answer is OK
    assert await flow.snapshot() == before


async def test_progress_is_at_most_the_total(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.store.progress(running, 12, 10)
    assert (await flow.step(job_id, "first"))["done"] == "10"


async def test_a_new_execution_starts_at_zero(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.store.progress(running, 9, 10)
    await flow.store.fail(running, b"[]")
    again = await flow.start(job_id, "first")
    step = await flow.step(job_id, "first")
    assert (step["done"], step["total"]) == ("0", "0")
    await flow.store.progress(again, 1, 10)
    assert (await flow.step(job_id, "first"))["done"] == "1"
    assert (await flow.store.progress(running, 10, 10)).answer is WorkflowAnswer.LOST


async def test_data_is_stored_per_execution(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    for value in (b"old", b"\x00\xff"):
        assert (await flow.store.put(running, "draft", value)).answer is OK
    await flow.complete(running)
    field = f"{running.execution}:draft"
    assert await flow.client.hget(flow.keys.data(job_id), field) == b"\x00\xff"
    assert (await flow.store.put(running, "draft", b"late")).answer is WorkflowAnswer.ALREADY
    assert await flow.without_ttl() == []
