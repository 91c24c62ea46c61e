"""FAIL: a failed step fails the job, until it is executed again."""

from __future__ import annotations

from common.features.workflows.types import StepResult, WorkflowAnswer
from tests.common.features.workflows.kit import Flow, hooked

OK, ALREADY, LOST = WorkflowAnswer.OK, WorkflowAnswer.ALREADY, WorkflowAnswer.LOST
ERRORS = b'[{"code":"step_failed","message":"no \\"luck\\""}]'


async def test_a_failure_ends_step_and_job(flow: Flow) -> None:
    job_id = await flow.create(webhook=hooked("step.failed", "job.failed"))
    running = await flow.start(job_id, "second")
    assert (await flow.store.fail(running, ERRORS)).answer is OK
    step = await flow.step(job_id, "first")
    assert (step["status"], step["errors"]) == ("failed", ERRORS.decode())
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("failed", "failed")
    assert record["current_step"] == "first"
    assert record["target"] == ""
    assert record["completed_ms"] != ""
    assert await flow.running() == {}
    failed, ended = (await flow.events(job_id))[-2:]
    errors = [{"code": "step_failed", "message": 'no "luck"'}]
    assert failed == ("step.failed", "first", {"step": "first", "errors": errors})
    assert (ended[0], list(ended[2])) == ("job.failed", ["counts"])
    assert [entry["type"] for entry in await flow.outbox(job_id)] == ["step.failed", "job.failed"]
    assert await flow.without_ttl() == []


async def test_a_repeated_failure_counts_once(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.store.fail(running, ERRORS)
    before = await flow.snapshot()
    assert (await flow.store.fail(running, ERRORS)).answer is ALREADY
    assert (await flow.complete(running)).answer is ALREADY
    assert (await flow.store.progress(running, 1, 2)).answer is ALREADY
    assert (await flow.store.put(running, "a", b"b")).answer is ALREADY
    assert await flow.snapshot() == before


async def test_a_cancelled_step_has_its_own_status(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.store.fail(running, b"", cancelled=True)
    assert (await flow.statuses(job_id))[0] == "cancelled"
    assert (await flow.record(job_id))["status"] == "failed"
    assert (await flow.events(job_id))[-2][2]["errors"] == []
    assert (await flow.execute(job_id, "first")).answer is OK


async def test_restarting_a_failed_last_step_makes_the_draft_clean(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second")
    await flow.execute(job_id, "review")
    await flow.run(job_id, "apply", StepResult("nothing to apply"))
    await flow.store.fail(await flow.start(job_id, "last"), ERRORS)
    assert (await flow.record(job_id))["draft_state"] == "failed"
    await flow.start(job_id, "last")
    assert (await flow.record(job_id))["draft_state"] == "clean"


async def test_a_failed_apply_can_save_again(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second")
    await flow.execute(job_id, "review")
    await flow.store.fail(await flow.start(job_id, "apply"), ERRORS)
    await flow.start(job_id, "apply")
    assert (await flow.record(job_id))["draft_state"] == "saving"


async def test_a_step_of_a_missing_job_is_not_running(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.client.delete(flow.keys.job(job_id))
    [stranded] = await flow.store.running()
    assert stranded.running == running
    assert (await flow.store.fail(running._replace(execution="ex_other"), ERRORS)).answer is (
        WorkflowAnswer.MISSING
    )
    assert len(await flow.running()) == 1
    assert (await flow.store.fail(running, ERRORS)).answer is WorkflowAnswer.MISSING
    assert await flow.running() == {}


async def test_a_stale_entry_of_a_running_step_is_removed(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    await flow.complete(running)
    await flow.client.hset(flow.keys.running, job_id, f"first {running.execution}")
    assert (await flow.store.fail(running, ERRORS)).answer is ALREADY
    assert await flow.running() == {}
    assert (await flow.record(job_id))["status"] == "running"
