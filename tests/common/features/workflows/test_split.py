"""SPLIT and COMPLETE_PART: a step in several core jobs, joined by the last one."""

from __future__ import annotations

import asyncio

import pytest

from common import codec
from common.errors import CorruptKey
from common.features.workflows.types import StepExecution, WorkflowAnswer
from tests.common.features.workflows.kit import Flow, fresh_ids, once

OK, ALREADY, LOST = WorkflowAnswer.OK, WorkflowAnswer.ALREADY, WorkflowAnswer.LOST


async def split(flow: Flow, others: int = 2) -> tuple[StepExecution, list[str]]:
    """Split a step; returns its execution and core jobs."""
    running = await flow.start(await flow.create(tenant="acme"), "first")
    more = [fresh_ids().core_job for _ in range(others)]
    outcome = await flow.store.split(running, more, 600)
    assert (outcome.answer, outcome.facts) == (OK, {"parts": others + 1})
    return running, [(await flow.queued())[0][0], *more]


async def needed(flow: Flow) -> list[str]:
    return [stranded.core_job for stranded in await flow.store.running()]


async def test_parts_are_core_jobs_with_their_number(flow: Flow) -> None:
    running, jobs = await split(flow)
    queued = await flow.queued()
    assert [core_id for core_id, _ in queued] == jobs
    assert [arguments.get("part") for _, arguments in queued] == [None, 1, 2]
    assert {arguments["execution_id"] for _, arguments in queued} == {running.execution}
    step = await flow.step(running.job_id, "first")
    assert (step["parts"], step["part_jobs"]) == ("3", " ".join(jobs[1:]))
    lease = await flow.client.hgetall(flow.jobs.lease(jobs[2]))
    assert codec.loads(lease[b"options"])["tenant"] == "acme"


async def test_a_step_is_split_once(flow: Flow) -> None:
    running, _ = await split(flow)
    before = await flow.snapshot()
    again = await flow.store.split(running, [fresh_ids().core_job], 600)
    assert (again.answer, again.facts) == (ALREADY, {"parts": 3})
    assert await flow.snapshot() == before


async def test_exactly_one_part_is_the_last(flow: Flow) -> None:
    running, _ = await split(flow, 9)
    outcomes = await asyncio.gather(
        *(flow.store.finish_part(running, part, b"%d" % part) for part in range(10))
    )
    assert sorted(outcome.facts["left"] for outcome in outcomes) == list(range(10))
    step = await flow.step(running.job_id, "first")
    assert (step["done"], step["total"]) == ("10", "10")
    assert (await flow.types(running.job_id)).count("step.progress") == 10
    found = await flow.client.hgetall(flow.keys.parts(running.job_id))
    assert found[f"{running.execution}:7".encode()] == b"7"
    # A part that repeats its call, after a lost reply or a crash, joins only if it was the last.
    last = int(found[f"{running.execution}:last".encode()])
    for part in (*(each for each in range(10) if each != last), last):
        left = {"left": int(part != last)}
        assert (await flow.store.finish_part(running, part, b"%d" % part)).facts == left
    assert await flow.client.hgetall(flow.keys.parts(running.job_id)) == found
    assert (await flow.complete(running)).answer is OK
    assert await flow.client.exists(flow.keys.parts(running.job_id)) == 0
    assert (await flow.store.finish_part(running, 4, b"4")).answer is ALREADY


async def test_a_part_that_completes_twice_counts_once(flow: Flow) -> None:
    running, _ = await split(flow)
    for _ in range(3):
        assert (await flow.store.finish_part(running, 1, b"x")).facts == {"left": 2}
    assert (await flow.store.finish_part(running, 3, b"x")).answer is LOST  # an unknown part


async def test_a_step_that_was_not_split_has_no_parts(flow: Flow) -> None:
    running = await flow.start(await flow.create(), "first")
    assert (await flow.store.finish_part(running, 0, b"x")).answer is LOST


async def test_only_needed_core_jobs_can_strand_a_step(flow: Flow) -> None:
    running, jobs = await split(flow)
    assert await needed(flow) == jobs
    await flow.store.finish_part(running, 1, b"x")
    assert await needed(flow) == [jobs[0], jobs[2]]
    await flow.store.finish_part(running, 0, b"x")
    await flow.store.finish_part(running, 2, b"x")
    assert await needed(flow) == [jobs[2]]  # it has to join them
    await flow.complete(running)
    assert await needed(flow) == []


async def test_progress_of_a_part_is_not_that_of_the_step(flow: Flow) -> None:
    running, _ = await split(flow)
    before = await flow.snapshot()
    assert (await flow.store.progress(running, 9, 10)).answer is OK
    assert await flow.snapshot() == before


async def test_a_failed_part_fails_the_step_and_leaves_no_data(flow: Flow) -> None:
    running, _ = await split(flow)
    await flow.store.finish_part(running, 0, b"x")
    await flow.store.fail(running, b"[]")
    assert await flow.client.exists(flow.keys.parts(running.job_id)) == 0
    again = await flow.start(running.job_id, "first")
    step = await flow.step(running.job_id, "first")
    assert (step["parts"], step["part_jobs"]) == ("", "")
    assert (await flow.store.finish_part(running, 1, b"x")).answer is LOST
    assert (await flow.store.finish_part(again, 1, b"x")).answer is LOST


async def test_a_cancel_returns_the_core_jobs_of_all_parts(flow: Flow) -> None:
    running, jobs = await split(flow)
    outcome = await flow.store.cancel(running.job_id, once())
    assert outcome.facts == {"core_jobs": jobs}


async def test_an_existing_job_id_prevents_the_split(flow: Flow) -> None:
    running = await flow.start(await flow.create(), "first")
    more = [fresh_ids().core_job for _ in range(2)]
    await flow.client.set(flow.jobs.job(more[1]), "spoilt")
    before = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await flow.store.split(running, more, 600)
    assert await flow.snapshot() == before


async def test_running_steps_are_found_despite_invalid_entries(flow: Flow) -> None:
    assert await flow.store.running() == []
    running, jobs = await split(flow, 1)
    await flow.client.hset(flow.keys.running, "wf_20260214_777", "no-such step")
    await flow.client.hset(flow.keys.running, "wf_20260214_778", "nonsense")
    await flow.client.set(flow.keys.steps("wf_20260214_777"), "spoilt")
    found = {stranded.core_job: stranded.running for stranded in await flow.store.running()}
    assert found == {
        jobs[0]: running, jobs[1]: running, "": StepExecution("wf_20260214_777", "no-such", "step"),
    }  # fmt: skip
