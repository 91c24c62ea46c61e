"""COMPLETE: items, the next step, the end of the job, changes to earlier items."""

from __future__ import annotations

import asyncio

import pytest

from common import codec
from common.errors import CorruptKey
from common.features.workflows.types import (
    ExecuteCommand,
    NewItem,
    StepExecution,
    StepResult,
    WorkflowAnswer,
)
from tests.common.features.workflows.kit import ADMISSION, Flow, fresh_ids, hooked, once, proposals

OK, ALREADY, LOST = WorkflowAnswer.OK, WorkflowAnswer.ALREADY, WorkflowAnswer.LOST
REFUSED, MISSING = WorkflowAnswer.REFUSED, WorkflowAnswer.MISSING


async def approved(flow: Flow, count: int = 2) -> str:
    """A job whose proposals are all approved, and whose review has ended."""
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(count))
    await flow.approve_all(job_id)
    await flow.execute(job_id, "review")
    return job_id


async def test_items_have_ids_states_and_an_order(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    items = [NewItem(b'{"a":[]}'), NewItem(b'{"b":1e400}', "complete", 0.123456789)]
    outcome = await flow.complete(running, StepResult("two things", items, b'[{"code":"y"}]'))
    assert outcome == (OK, {}, False, 0, 0, b"")
    assert await flow.ids(job_id) == await flow.ids(job_id, "first") == ["f_001", "f_002"]
    payloads = await flow.client.hgetall(flow.keys.items(job_id))
    assert payloads == {b"f_001": b'{"a":[]}', b"f_002": b'{"b":1e400}'}  # never parsed
    assert await flow.states(job_id) == {
        "f_001": "complete 1 0 1.000000", "f_002": "complete 1 0 0.123457",
    }  # fmt: skip
    step = await flow.step(job_id, "first")
    assert (step["status"], step["summary"], step["count"]) == ("complete", "two things", "2")
    assert step["errors"] == '[{"code":"y"}]'
    assert step["done"] == step["total"] != "0"
    kind, name, data = (await flow.events(job_id))[-1]
    assert (kind, name) == ("step.completed", "first")
    assert data == {"step": "first", "summary": "two things", "count": 2}
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("running", "first")
    assert await flow.running() == {}
    assert await flow.without_ttl() == []


async def test_the_maximum_number_of_items(flow: Flow) -> None:
    job_id = await flow.create()
    items = [NewItem(b"{}", "proposed", 0.5)] * 2000
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", StepResult("many", items))
    ids = await flow.ids(job_id)
    assert (len(ids), ids[0], ids[998], ids[-1]) == (2000, "p_001", "p_999", "p_2000")
    assert (await flow.record(job_id))["proposed"] == "2000"
    await flow.start(job_id, "second")
    assert await flow.ids(job_id) == []


async def test_a_summary_may_be_any_text(flow: Flow) -> None:
    job_id = await flow.create()
    summary = 'a "quoted"\nline / with \\ and ümlaut \x7f'
    await flow.run(job_id, "first", StepResult(summary))
    assert (await flow.step(job_id, "first"))["summary"] == summary
    assert (await flow.events(job_id))[-1][2]["summary"] == summary


async def test_an_auto_advance_job_runs_to_its_end(flow: Flow) -> None:
    job_id = await flow.create(auto_advance=True, webhook=hooked())
    [(_, arguments)] = await flow.queued()
    running = StepExecution(job_id, "first", arguments["execution_id"])
    for step in ("second", "apply", "last"):  # nothing is proposed, so no review waits
        running = flow.started(job_id, await flow.complete(running))
        assert running.step == step
    assert (await flow.record(job_id))["draft_state"] == "clean"
    assert (await flow.complete(running)).facts == {}
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("completed", "clean")
    assert int(record["completed_ms"]) >= int(record["started_ms"])
    kind, _, data = (await flow.events(job_id))[-1]
    assert kind == "job.completed"
    assert data == {"counts": {"proposed": 0, "approved": 0, "rejected": 0, "applied": 0}}
    assert await flow.statuses(job_id) == ["complete"] * 5
    last = (await flow.outbox(job_id))[-1]
    assert (last["type"], last["status"]) == ("job.completed", "completed")
    refused = await flow.execute(job_id, "first")
    assert refused.facts == {"code": "job_terminal"}


async def test_a_full_queue_does_not_stop_a_running_job(flow: Flow) -> None:
    job_id = await flow.create(auto_advance=True)
    [(_, arguments)] = await flow.queued()
    for _ in range(50):
        await flow.client.xadd(flow.jobs.queue, {"job_id": "x"})
    outcome = await flow.complete(StepExecution(job_id, "first", arguments["execution_id"]))
    assert outcome.facts["started"]["step"] == "second"


async def test_an_execution_completes_once(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    outcomes = await asyncio.gather(*(flow.complete(running, proposals(1)) for _ in range(10)))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert {outcome.answer for outcome in outcomes} == {OK, ALREADY}
    assert (await flow.types(job_id)).count("step.completed") == 1
    assert await flow.ids(job_id) == ["f_001"]


async def test_only_the_current_execution_may_write(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    before = await flow.snapshot()
    for wrong in (running._replace(execution="ex_0"), running._replace(step="second")):
        assert (await flow.complete(wrong, proposals(1))).answer is LOST
        assert (await flow.store.fail(wrong, b"[]")).answer is LOST
        assert (await flow.store.put(wrong, "a", b"b")).answer is LOST
        assert (await flow.store.progress(wrong, 1, 2)).answer is LOST
        assert (await flow.store.split(wrong, ["x"], 60)).answer is LOST
        assert (await flow.store.finish_part(wrong, 0, b"")).answer is LOST
    gone = running._replace(job_id="wf_20260214_999")
    assert (await flow.complete(gone)).answer is MISSING
    assert (await flow.store.fail(gone, b"[]")).answer is MISSING
    assert (await flow.store.put(gone, "a", b"b")).answer is LOST
    assert await flow.snapshot() == before


async def test_a_step_changes_items_of_earlier_steps(flow: Flow) -> None:
    job_id = await approved(flow)
    running = await flow.start(job_id, "apply")
    assert (await flow.record(job_id))["draft_state"] == "saving"
    token = "undo_0a1b2c3d"
    await flow.client.hset(flow.keys.operations(job_id), token, b'{"effects":{"a":"b"}}')
    changed = [("p_001", "applied", 2), ("p_002", "failed", 2)]
    outcome = await flow.complete(
        running, StepResult("one applied", [NewItem(b"{}")], changed=changed, undo_token=token)
    )
    assert outcome.facts == {"undo_token": token}
    states = await flow.states(job_id)
    assert (states["p_001"], states["p_002"]) == ("applied 3 0 0.500000", "failed 3 0 0.500000")
    record = await flow.record(job_id)
    counters = ("proposed", "approved", "applied", "pending_changes")
    assert [record[counter] for counter in counters] == ["0", "0", "1", "0"]
    assert record["draft_state"] == "clean"
    assert await flow.client.lindex(flow.keys.undo(job_id), 0) == token.encode()
    operation = codec.loads(await flow.client.hget(flow.keys.operations(job_id), token) or b"")
    assert operation["effects"] == {"a": "b"}
    assert operation["kind"] == "step"
    assert {name: held["status"] for name, held in operation["items"].items()} == {
        "p_001": "approved", "p_002": "approved",
    }  # fmt: skip
    assert (await flow.step(job_id, "apply"))["undo_token"] == token
    kind, step, data = (await flow.events(job_id))[-2]
    assert (kind, step, data["items"]) == ("item.changed", "apply", ["p_001", "p_002"])


async def test_concurrent_changes_are_not_overwritten(flow: Flow) -> None:
    job_id = await approved(flow)
    running = await flow.start(job_id, "apply")
    before = await flow.snapshot()
    changed = [("p_001", "applied", 2), ("p_002", "applied", 1), ("p_009", "applied", 1)]
    refused = await flow.complete(running, StepResult("x", [NewItem(b"{}")], changed=changed))
    assert (refused.answer, refused.facts) == (
        REFUSED, {"code": "version_conflict", "items": ["p_002", "p_009"]},
    )  # fmt: skip
    assert await flow.snapshot() == before


async def test_unapplied_changes_leave_the_draft_dirty(flow: Flow) -> None:
    job_id = await approved(flow)
    await flow.run(job_id, "apply", StepResult("a dry run"))
    assert (await flow.record(job_id))["draft_state"] == "dirty"
    assert (await flow.step(job_id, "apply"))["undo_token"] == ""
    assert await flow.client.llen(flow.keys.undo(job_id)) == 1  # the decisions


async def test_reads_change_nothing_and_writes_extend_the_ttl(flow: Flow) -> None:
    job_id = await flow.create(ttl_s=7200)
    for key in await flow.client.keys(f"workflow:job:{job_id}*"):
        await flow.client.expire(key, 60)
    await flow.start(job_id, "first")
    for key in await flow.client.keys(f"workflow:job:{job_id}*"):
        assert 7190 < await flow.client.ttl(key) <= 7200


@pytest.mark.parametrize("spoilt", ["items", "operations", "events", "queue", "reviews", "core"])
async def test_a_key_of_the_wrong_type_fails_before_any_write(flow: Flow, spoilt: str) -> None:
    job_id = await flow.create(auto_advance=True)
    [(_, arguments)] = await flow.queued()
    running = StepExecution(job_id, "first", arguments["execution_id"])
    ids = fresh_ids()
    special = {
        "queue": flow.jobs.queue, "reviews": flow.keys.reviews,
        "core": flow.jobs.lease(ids.core_job),
    }  # fmt: skip
    key = special.get(spoilt) or getattr(flow.keys, spoilt)(job_id)
    await flow.client.delete(key)
    await flow.client.set(key, "spoilt")
    before = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await flow.store.complete(running, proposals(2), ids, 600)
    assert await flow.snapshot() == before
    await flow.client.delete(key)
    assert (await flow.store.complete(running, proposals(2), ids, 600)).answer is OK


async def test_a_corrupt_record_affects_no_other_job(flow: Flow) -> None:
    broken, sound = await flow.create(), await flow.create()
    await flow.client.hset(flow.keys.job(broken), "definition", "no JSON")
    await flow.client.hset(flow.keys.job(sound), mapping={"event_seq": "1", "ttl_s": "-7"})
    outcomes = await asyncio.gather(
        flow.execute(broken, "first"), flow.execute(sound, "first"), return_exceptions=True
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1].answer is OK  # type: ignore[union-attr]
    assert await flow.client.ttl(flow.keys.job(sound)) > 3600


async def test_a_key_reused_for_another_job_starts_nothing(flow: Flow) -> None:
    one, two = await flow.create(), await flow.create()
    same = once("k")
    await flow.store.execute(ExecuteCommand(one, "first"), same, fresh_ids(), ADMISSION)
    again = await flow.store.execute(ExecuteCommand(two, "first"), same, fresh_ids(), ADMISSION)
    assert again.replayed
    assert await flow.statuses(two) == ["not_started"] * 5
