"""COMPLETE, SPLIT and COMPLETE_PART: results of a step, also of several core jobs."""

from __future__ import annotations

import asyncio

import pytest

from sluice.common import codec
from sluice.common.errors import CorruptKey
from sluice.common.features.workflows.types import NewItem, StepExecution, StepResult
from tests.support.store.workflows import (
    ALREADY,
    LOST,
    MISSING,
    OK,
    REFUSED,
    WorkflowHarness,
    fresh_ids,
    hooked,
    once,
    proposals,
)


async def approved(workflow: WorkflowHarness, count: int = 2) -> str:
    """A job whose proposals are all approved, and whose review has ended."""
    job_id = await workflow.create()
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second", proposals(count))
    await workflow.approve_all(job_id)
    await workflow.execute(job_id, "review")
    return job_id


async def test_items_have_ids_states_and_an_order(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    items = [NewItem(b'{"a":[]}'), NewItem(b'{"b":1e400}', "complete", 0.123456789)]
    summary = 'a "quoted"\nline / with \\ and ümlaut \x7f'
    outcome = await workflow.complete(running, StepResult(summary, items, b'[{"code":"y"}]'))
    assert outcome == (OK, {}, False, 0, 0, b"")
    assert await workflow.ids(job_id) == await workflow.ids(job_id, "first") == ["f_001", "f_002"]
    payloads = await workflow.client.hgetall(workflow.keys.items(job_id))
    assert payloads == {b"f_001": b'{"a":[]}', b"f_002": b'{"b":1e400}'}  # never parsed
    assert await workflow.states(job_id) == {
        "f_001": "complete 1 0 1.000000", "f_002": "complete 1 0 0.123457",
    }  # fmt: skip
    step = await workflow.step(job_id, "first")
    assert (step["status"], step["summary"], step["count"]) == ("complete", summary, "2")
    assert step["errors"] == '[{"code":"y"}]'
    assert step["done"] == step["total"] != "0"
    kind, name, data = (await workflow.events(job_id))[-1]
    assert (kind, name) == ("step.completed", "first")
    assert data == {"step": "first", "summary": summary, "count": 2}
    await workflow.has(job_id, status="running", current_step="first")
    assert await workflow.running() == {}
    assert await workflow.without_ttl() == []


@pytest.mark.real_redis
async def test_the_maximum_number_of_items(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    items = [NewItem(b"{}", "proposed", 0.5)] * 2000
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second", StepResult("many", items))
    ids = await workflow.ids(job_id)
    assert (len(ids), ids[0], ids[998], ids[-1]) == (2000, "p_001", "p_999", "p_2000")
    assert (await workflow.record(job_id))["proposed"] == "2000"
    await workflow.start(job_id, "second")
    assert await workflow.ids(job_id) == []


async def test_an_auto_advance_job_runs_to_its_end(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(auto_advance=True, webhook=hooked())
    [(_, arguments)] = await workflow.queued()
    running = StepExecution(job_id, "first", arguments["execution_id"])
    for _ in range(50):  # a full queue does not stop a running job
        await workflow.client.xadd(workflow.jobs.queue, {"job_id": "x"})
    for step in ("second", "apply", "last"):  # nothing is proposed, so no review waits
        running = workflow.started(job_id, await workflow.complete(running))
        assert running.step == step
    assert (await workflow.record(job_id))["draft_state"] == "clean"
    assert (await workflow.complete(running)).facts == {}
    record = await workflow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("completed", "clean")
    assert int(record["completed_ms"]) >= int(record["started_ms"])
    kind, _, data = (await workflow.events(job_id))[-1]
    assert kind == "job.completed"
    assert data == {"counts": {"proposed": 0, "approved": 0, "rejected": 0, "applied": 0}}
    assert await workflow.statuses(job_id) == ["complete"] * 5
    last = (await workflow.outbox(job_id))[-1]
    assert (last["type"], last["status"]) == ("job.completed", "completed")
    assert (await workflow.execute(job_id, "first")).facts == {"code": "job_terminal"}


async def test_an_execution_completes_once(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    outcomes = await asyncio.gather(*(workflow.complete(running, proposals(1)) for _ in range(10)))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert {outcome.answer for outcome in outcomes} == {OK, ALREADY}
    assert (await workflow.types(job_id)).count("step.completed") == 1
    assert await workflow.ids(job_id) == ["f_001"]


async def test_only_the_current_execution_may_write(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    running = await workflow.start(job_id, "first")
    async with workflow.unchanged():
        for wrong in (running._replace(execution="ex_0"), running._replace(step="second")):
            assert (await workflow.complete(wrong, proposals(1))).answer is LOST
            assert (await workflow.store.fail(wrong, b"[]")).answer is LOST
            assert (await workflow.store.put(wrong, "a", b"b")).answer is LOST
            assert (await workflow.store.progress(wrong, 1, 2)).answer is LOST
            assert (await workflow.store.split(wrong, ["x"], 60)).answer is LOST
            assert (await workflow.store.finish_part(wrong, 0, b"")).answer is LOST
        gone = running._replace(job_id="wf_20260214_999")
        assert (await workflow.complete(gone)).answer is MISSING
        assert (await workflow.store.fail(gone, b"[]")).answer is MISSING
        assert (await workflow.store.put(gone, "a", b"b")).answer is LOST


async def test_a_step_changes_items_of_earlier_steps(workflow: WorkflowHarness) -> None:
    job_id = await approved(workflow)
    running = await workflow.start(job_id, "apply")
    assert (await workflow.record(job_id))["draft_state"] == "saving"
    token = "undo_0a1b2c3d"
    await workflow.client.hset(workflow.keys.operations(job_id), token, b'{"effects":{"a":"b"}}')
    changed = [("p_001", "applied", 2), ("p_002", "failed", 2)]
    outcome = await workflow.complete(
        running, StepResult("one applied", [NewItem(b"{}")], changed=changed, undo_token=token)
    )
    assert outcome.facts == {"undo_token": token}
    states = await workflow.states(job_id)
    assert (states["p_001"], states["p_002"]) == ("applied 3 0 0.500000", "failed 3 0 0.500000")
    record = await workflow.record(job_id)
    counters = ("proposed", "approved", "applied", "pending_changes")
    assert [record[counter] for counter in counters] == ["0", "0", "1", "0"]
    assert record["draft_state"] == "clean"
    assert await workflow.client.lindex(workflow.keys.undo(job_id), 0) == token.encode()
    operation = codec.loads(
        await workflow.client.hget(workflow.keys.operations(job_id), token) or b""
    )
    assert operation["effects"] == {"a": "b"}
    assert operation["kind"] == "step"
    assert {name: held["status"] for name, held in operation["items"].items()} == {
        "p_001": "approved", "p_002": "approved",
    }  # fmt: skip
    assert (await workflow.step(job_id, "apply"))["undo_token"] == token
    kind, step, data = (await workflow.events(job_id))[-2]
    assert (kind, step, data["items"]) == ("item.changed", "apply", ["p_001", "p_002"])


async def test_concurrent_changes_are_not_overwritten(workflow: WorkflowHarness) -> None:
    job_id = await approved(workflow)
    running = await workflow.start(job_id, "apply")
    async with workflow.unchanged():
        changed = [("p_001", "applied", 2), ("p_002", "applied", 1), ("p_009", "applied", 1)]
        refused = await workflow.complete(
            running, StepResult("x", [NewItem(b"{}")], changed=changed)
        )
        assert (refused.answer, refused.facts) == (
            REFUSED, {"code": "version_conflict", "items": ["p_002", "p_009"]},
        )  # fmt: skip


async def test_unapplied_changes_leave_the_draft_dirty(workflow: WorkflowHarness) -> None:
    job_id = await approved(workflow)
    await workflow.run(job_id, "apply", StepResult("a dry run"))
    assert (await workflow.record(job_id))["draft_state"] == "dirty"
    assert (await workflow.step(job_id, "apply"))["undo_token"] == ""
    assert await workflow.client.llen(workflow.keys.undo(job_id)) == 1  # the decisions
    # Executing the review again keeps its decisions.
    outcome = await workflow.execute(job_id, "review")
    assert (outcome.answer, outcome.facts["completed"]) == (OK, True)
    assert await workflow.statuses(job_id) == ["complete"] * 3 + ["not_started"] * 2
    assert (await workflow.states(job_id))["p_001"] == "approved 2 0 0.500000"
    assert (await workflow.step(job_id, "review"))["attempt"] == "2"


async def test_reads_change_nothing_and_writes_extend_the_ttl(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(ttl_s=7200)
    for key in await workflow.client.keys(f"workflow:job:{job_id}*"):
        await workflow.client.expire(key, 60)
    await workflow.start(job_id, "first")
    for key in await workflow.client.keys(f"workflow:job:{job_id}*"):
        assert 7190 < await workflow.client.ttl(key) <= 7200


async def test_a_spoilt_key_fails_before_any_write(workflow: WorkflowHarness) -> None:
    names, ids = workflow.keys, fresh_ids()
    job_id = await workflow.create(auto_advance=True)
    [(_, arguments)] = await workflow.queued()
    running = StepExecution(job_id, "first", arguments["execution_id"])
    keys = [names.items(job_id), names.operations(job_id), names.reviews, names.events(job_id)]
    outcome = await workflow.needs(
        [*keys, workflow.jobs.lease(ids.core_job), workflow.jobs.queue],
        lambda: workflow.store.complete(running, proposals(2), ids, 600),
    )
    assert outcome.answer is OK


async def test_a_corrupt_record_affects_no_other_job(workflow: WorkflowHarness) -> None:
    broken, sound = await workflow.create(), await workflow.create()
    await workflow.client.hset(workflow.keys.job(broken), "definition", "no JSON")
    await workflow.client.hset(workflow.keys.job(sound), mapping={"event_seq": "1", "ttl_s": "-7"})
    outcomes = await asyncio.gather(
        workflow.execute(broken, "first"), workflow.execute(sound, "first"), return_exceptions=True
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1].answer is OK  # type: ignore[union-attr]
    assert await workflow.client.ttl(workflow.keys.job(sound)) > 3600


# -- SPLIT and COMPLETE_PART: a step in several core jobs, joined by the last one -----------------


async def split(workflow: WorkflowHarness, others: int = 2) -> tuple[StepExecution, list[str]]:
    """Split a step; returns its execution and core jobs."""
    running = await workflow.start(await workflow.create(tenant="acme"), "first")
    more = [fresh_ids().core_job for _ in range(others)]
    outcome = await workflow.store.split(running, more, 600)
    assert (outcome.answer, outcome.facts) == (OK, {"parts": others + 1})
    return running, [(await workflow.queued())[0][0], *more]


async def needed(workflow: WorkflowHarness) -> list[str]:
    return [stranded.core_job for stranded in await workflow.store.running()]


async def test_parts_are_core_jobs_with_their_number(workflow: WorkflowHarness) -> None:
    running, jobs = await split(workflow)
    queued = await workflow.queued()
    assert [core_id for core_id, _ in queued] == jobs
    assert [arguments.get("part") for _, arguments in queued] == [None, 1, 2]
    assert {arguments["execution_id"] for _, arguments in queued} == {running.execution}
    await workflow.step_has(running.job_id, "first", parts="3", part_jobs=" ".join(jobs[1:]))
    lease = await workflow.client.hgetall(workflow.jobs.lease(jobs[2]))
    assert codec.loads(lease[b"options"])["tenant"] == "acme"
    async with workflow.unchanged():
        again = await workflow.store.split(running, [fresh_ids().core_job], 600)
        assert (again.answer, again.facts) == (ALREADY, {"parts": 3})  # a step is split once
        # The progress of a part is not that of the step.
        assert (await workflow.store.progress(running, 9, 10)).answer is OK
    assert (await workflow.store.cancel(running.job_id, once())).facts == {"core_jobs": jobs}
    # An existing job id prevents a split.
    running = await workflow.start(await workflow.create(), "first")
    more = [fresh_ids().core_job for _ in range(2)]
    await workflow.client.set(workflow.jobs.job(more[1]), "spoilt")
    async with workflow.refuses():
        await workflow.store.split(running, more, 600)


async def test_exactly_one_part_is_the_last(workflow: WorkflowHarness) -> None:
    running, _ = await split(workflow, 9)
    outcomes = await asyncio.gather(
        *(workflow.store.finish_part(running, part, b"%d" % part) for part in range(10))
    )
    assert sorted(outcome.facts["left"] for outcome in outcomes) == list(range(10))
    await workflow.step_has(running.job_id, "first", done="10", total="10")
    assert (await workflow.types(running.job_id)).count("step.progress") == 10
    found = await workflow.client.hgetall(workflow.keys.parts(running.job_id))
    assert found[f"{running.execution}:7".encode()] == b"7"
    # A part that repeats its call, after a lost reply or a crash, joins only if it was the last.
    last = int(found[f"{running.execution}:last".encode()])
    for part in (*(each for each in range(10) if each != last), last):
        left = {"left": int(part != last)}
        assert (await workflow.store.finish_part(running, part, b"%d" % part)).facts == left
    assert await workflow.client.hgetall(workflow.keys.parts(running.job_id)) == found
    assert (await workflow.complete(running)).answer is OK
    assert await workflow.client.exists(workflow.keys.parts(running.job_id)) == 0
    assert (await workflow.store.finish_part(running, 4, b"4")).answer is ALREADY


async def test_a_part_that_completes_twice_counts_once(workflow: WorkflowHarness) -> None:
    running, _ = await split(workflow)
    for _ in range(3):
        assert (await workflow.store.finish_part(running, 1, b"x")).facts == {"left": 2}
    assert (await workflow.store.finish_part(running, 3, b"x")).answer is LOST  # an unknown part
    whole = await workflow.start(await workflow.create(), "first")  # that was not split
    assert (await workflow.store.finish_part(whole, 0, b"x")).answer is LOST


async def test_only_needed_core_jobs_can_strand_a_step(workflow: WorkflowHarness) -> None:
    running, jobs = await split(workflow)
    assert await needed(workflow) == jobs
    await workflow.store.finish_part(running, 1, b"x")
    assert await needed(workflow) == [jobs[0], jobs[2]]
    await workflow.store.finish_part(running, 0, b"x")
    await workflow.store.finish_part(running, 2, b"x")
    assert await needed(workflow) == [jobs[2]]  # it has to join them
    await workflow.complete(running)
    assert await needed(workflow) == []


async def test_a_failed_part_fails_the_step_and_leaves_no_data(workflow: WorkflowHarness) -> None:
    running, _ = await split(workflow)
    await workflow.store.finish_part(running, 0, b"x")
    await workflow.store.fail(running, b"[]")
    assert await workflow.client.exists(workflow.keys.parts(running.job_id)) == 0
    again = await workflow.start(running.job_id, "first")
    await workflow.step_has(running.job_id, "first", parts="", part_jobs="")
    assert (await workflow.store.finish_part(running, 1, b"x")).answer is LOST
    assert (await workflow.store.finish_part(again, 1, b"x")).answer is LOST


async def test_running_steps_are_found_despite_invalid_entries(workflow: WorkflowHarness) -> None:
    assert await workflow.store.running() == []
    running, jobs = await split(workflow, 1)
    await workflow.client.hset(workflow.keys.running, "wf_20260214_777", "no-such step")
    await workflow.client.hset(workflow.keys.running, "wf_20260214_778", "nonsense")
    await workflow.client.set(workflow.keys.steps("wf_20260214_777"), "spoilt")
    found = {stranded.core_job: stranded.running for stranded in await workflow.store.running()}
    assert found == {
        jobs[0]: running, jobs[1]: running, "": StepExecution("wf_20260214_777", "no-such", "step"),
    }  # fmt: skip
