"""Running steps: context, output and end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.worker.features.workflows.kit import FlowMaker, definition, nothing, registry_of
from worker.errors import JobError, TransientError
from worker.execution.context import JobContext
from worker.features.workflows.context import StepContext
from worker.features.workflows.errors import StepError
from worker.features.workflows.output import StepItem, StepOutput

TWO = definition("gather", "sort")


async def test_a_step_leaves_items_and_the_next_one_finds_them(flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        await context.put("raw", b"\x00bytes")
        assert (context.workflow, context.step, context.attempt) == ("flow_v1", "gather", 1)
        assert (context.namespace, context.metadata) == ("notes", {"by": "me"})
        names = context.options["names"]
        return StepOutput(f"Found {len(names)}", [StepItem({"name": name}) for name in names])

    async def sort(context: StepContext) -> StepOutput:
        assert await context.get("gather", "raw") == b"\x00bytes"
        assert await context.get("gather", "other") is None
        assert await context.get("sort", "raw") is None
        assert await context.options_of("gather") == {"names": ["b", "a"]}
        assert context.step_record("gather").summary == "Found 2"
        found = sorted(json.loads(item.payload)["name"] for item in await context.items("gather"))
        return StepOutput("Sorted", [StepItem({"names": found}, "proposed", 0.5)])

    rig = await flows((TWO, {"gather": gather, "sort": sort}))
    job_id = await rig.create(TWO, namespace="notes", metadata=b'{"by":"me"}')
    first = await rig.run(job_id, "gather", {"names": ["b", "a"]})
    assert (first.status.value, first.summary, first.count) == ("complete", "Found 2", 2)
    assert (await rig.snapshot(job_id)).status.value == "running"
    second = await rig.run(job_id, "sort")
    assert (second.status.value, second.summary) == ("complete", "Sorted")
    job = await rig.snapshot(job_id)
    assert (job.status.value, job.progress) == ("completed", 1.0)
    [item] = await rig.reader_of_jobs.step_items(job_id, "sort")
    assert (item.id, item.status.value, item.confidence) == ("s1_001", "proposed", 0.5)
    assert json.loads(item.payload) == {"names": ["a", "b"]}
    assert await rig.result_of(job_id, "gather") == {
        "workflow_job_id": job_id,
        "step": "gather",
        "execution_id": first.execution,
        "items": 2,
        "summary": "Found 2",
    }
    assert await rig.event_types(job_id) == [
        ("job.created", ""),
        ("step.started", "gather"),
        ("step.completed", "gather"),
        ("step.started", "sort"),
        ("step.completed", "sort"),
        ("job.completed", "sort"),
    ]
    await rig.all_acked()


async def test_the_next_step_starts_with_the_same_owner(flows: FlowMaker) -> None:
    rig = await flows((TWO, {"gather": nothing, "sort": nothing}))
    tail = "0123456789ab"
    job_id = await rig.create(TWO, tail, tenant="acme", auto_advance=True)
    await rig.step_ended(job_id, "sort")
    for step in ("gather", "sort"):
        record = await rig.step(job_id, step)
        assert record.core_job.endswith(tail)
        assert (await rig.core_ended(job_id, step))[b"task"] == b"tool"
    assert (await rig.snapshot(job_id)).status.value == "completed"


async def test_a_failed_step_has_a_reason_and_can_be_resumed(flows: FlowMaker) -> None:
    broken = True

    async def sort(context: StepContext) -> StepOutput:
        if broken:
            raise StepError("no_photos", "there are none in album 7")
        return StepOutput("Sorted")

    rig = await flows((TWO, {"gather": nothing, "sort": sort}))
    job_id = await rig.create(TWO)
    failed = await rig.run(job_id, "sort")
    assert failed.status.value == "failed"
    assert list(failed.errors) == [{"code": "no_photos", "message": "there are none in album 7"}]
    assert (await rig.core_ended(job_id, "sort"))[b"status"] == b"error"
    job = await rig.snapshot(job_id)
    assert (job.status.value, job.draft_state.value) == ("failed", "failed")
    assert (await rig.event_types(job_id))[-2:] == [("step.failed", "sort"), ("job.failed", "sort")]
    broken = False
    await rig.execute(job_id, "sort")
    ended = await rig.step_ended(job_id, "sort")
    assert (ended.status.value, ended.attempt, ended.errors) == ("complete", 2, ())
    assert (await rig.step(job_id, "gather")).attempt == 1


async def test_other_failures_are_step_failed_with_their_kind(fake_flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        raise {
            "bug": ZeroDivisionError("1/0"),
            "job": JobError("cannot be done"),
            "coded": StepError("step_lost", "ours"),
        }[context.options["what"]]

    rig = await fake_flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    assert list((await rig.run(job_id, "gather", {"what": "bug"})).errors) == [
        {"code": "step_failed", "message": "1/0", "kind": "ZeroDivisionError"}
    ]
    assert list((await rig.run(job_id, "gather", {"what": "job"})).errors) == [
        {"code": "step_failed", "message": "cannot be done", "kind": "handler_error"}
    ]
    assert list((await rig.run(job_id, "gather", {"what": "coded"})).errors) == [
        {"code": "step_lost", "message": "ours"}
    ]


async def test_temporary_failures_are_retried_within_the_step(flows: FlowMaker) -> None:
    seen: list[tuple[int, str]] = []

    async def gather(context: StepContext) -> StepOutput:
        seen.append((context.attempt, context.step_record("gather").status.value))
        if context.attempt < 3:
            raise TransientError("not yet")
        return StepOutput("at last")

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    ended = await rig.run(job_id, "gather")
    assert (ended.status.value, ended.attempt) == ("complete", 1)
    assert seen == [(1, "running"), (2, "running"), (3, "running")]
    assert (await rig.event_types(job_id))[1:] == [
        ("step.started", "gather"),
        ("step.completed", "gather"),
    ]


async def test_the_number_of_attempts_is_limited(flows: FlowMaker) -> None:
    declared = definition("gather", max_attempts=2)

    async def gather(context: StepContext) -> StepOutput:
        raise TransientError("never")

    rig = await flows((declared, {"gather": gather}))
    job_id = await rig.create(declared)
    ended = await rig.run(job_id, "gather")
    assert list(ended.errors) == [
        {"code": "step_failed", "message": "never", "kind": "transient_error"}
    ]
    assert len(await rig.dead_letters()) == 1


async def test_a_step_has_a_timeout(fake_flows: FlowMaker) -> None:
    declared = definition("gather", timeout_s=0.2)

    async def gather(context: StepContext) -> StepOutput:
        await asyncio.Event().wait()
        raise AssertionError

    rig = await fake_flows((declared, {"gather": gather}))
    job_id = await rig.create(declared)
    [error] = (await rig.run(job_id, "gather")).errors
    assert (error["code"], error["kind"]) == ("step_failed", "timeout")
    assert "0.2 s" in error["message"]


async def test_a_canceled_core_job_cancels_the_step(flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        await context.core.wait_for_cancel()
        context.check_cancelled()
        raise AssertionError

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    await rig.execute(job_id, "gather")
    core_job = (await rig.step(job_id, "gather")).core_job
    await eventually(lambda: rig.executor.running)
    await rig.cancel(core_job)
    ended = await rig.step_ended(job_id, "gather")
    assert ended.status.value == "cancelled"
    assert [error["code"] for error in ended.errors] == ["step_cancelled"]
    assert await rig.settled(core_job) == b"canceled"


async def test_a_cancelled_workflow_stops_its_step(flows: FlowMaker) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def gather(context: StepContext) -> StepOutput:
        begun.set()
        await stop.wait()
        await context.progress(1, 2)
        raise AssertionError("it was asked to stop")

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    await rig.execute(job_id, "gather")
    await begun.wait()
    await rig.workflows.cancel(job_id, rig.once())
    before = await rig.event_types(job_id, progress=True)
    stop.set()
    assert (await rig.result_of(job_id, "gather"))["superseded"] is True
    assert await rig.event_types(job_id, progress=True) == before
    assert (await rig.snapshot(job_id)).status.value == "cancelled"


async def test_superseded_executions_are_stopped(flows: FlowMaker) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def gather(context: StepContext) -> StepOutput:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    await rig.execute(job_id, "gather")
    await begun.wait()
    assert await rig.service.runner.drop_superseded() == 0
    await rig.workflows.cancel(job_id, rig.once())
    assert await rig.service.runner.drop_superseded() == 1
    await asyncio.wait_for(stopped.wait(), 10)
    assert (await rig.result_of(job_id, "gather"))["superseded"] is True


async def test_a_superseded_execution_does_nothing(fake_flows: FlowMaker) -> None:
    ran = 0

    async def gather(context: StepContext) -> StepOutput:
        nonlocal ran
        ran += 1
        return StepOutput("once")

    rig = await fake_flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    ended = await rig.run(job_id, "gather")
    before = await rig.event_types(job_id)
    about = {"workflow_job_id": job_id, "step": "gather", "execution_id": ended.execution}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (about, {**about, "items": 0, "summary": "once"}),
        ({**about, "execution_id": "ex_00000000"}, {"superseded": True}),
        ({**about, "step": "sort"}, {"superseded": True}),
        ({**about, "step": "nonsense"}, {"superseded": True}),
        ({**about, "workflow_job_id": "wf_20260214_999"}, {"superseded": True}),
    ]
    for args, result in cases:
        payload = json.dumps({"tool": "workflow.step", "args": args}).encode()
        [core_job] = await rig.post(task="tool", payload=payload)
        await rig.settled(core_job)
        found = json.loads((await rig.job(core_job))[b"result"])
        assert result.items() <= found.items()
    assert ran == 1
    assert await rig.event_types(job_id) == before


async def test_invalid_arguments_are_refused(fake_flows: FlowMaker) -> None:
    rig = await fake_flows((TWO, {"gather": nothing, "sort": nothing}))
    good = {"workflow_job_id": "wf_20260214_001", "step": "gather", "execution_id": "ex_00000000"}
    for args in (
        None,
        {},
        [],
        {**good, "workflow_job_id": "job:1"},
        {**good, "step": 3},
        {**good, "execution_id": "1"},
        {**good, "part": True},
        {**good, "part": -1},
    ):
        payload = json.dumps({"tool": "workflow.step", "args": args}).encode()
        [core_job] = await rig.post(task="tool", payload=payload)
        assert await rig.settled(core_job) == b"error"
        assert (await rig.error(core_job))["kind"] == "invalid_payload"


async def test_an_unknown_workflow(fake_flows: FlowMaker) -> None:
    rig = await fake_flows((TWO, {"gather": nothing, "sort": nothing}))
    job_id = await rig.create(definition("gather", name="theirs_v1"))
    [error] = (await rig.run(job_id, "gather")).errors
    assert error["code"] == "unknown_workflow"
    assert "WORKER_HANDLERS" in error["message"]
    job_id = await rig.create(definition("gather", "melt", name="flow_v1"))
    [error] = (await rig.run(job_id, "melt")).errors
    assert error["code"] == "unknown_step"


async def test_internal_tools_cannot_be_overridden(fake_flows: FlowMaker) -> None:
    """A user's handler of `tool` does not get the internal jobs."""
    registry = registry_of((TWO, {"gather": nothing, "sort": nothing}))

    async def theirs(context: JobContext, payload: dict[str, Any]) -> str:
        return "theirs"

    registry.add("tool", theirs)
    rig = await fake_flows(registry=registry)
    job_id = await rig.create(TWO)
    assert (await rig.run(job_id, "gather")).status.value == "complete"
    [other] = await rig.post(task="tool", payload=b'{"tool":"workflow.steps"}')
    await rig.settled(other)
    assert json.loads((await rig.job(other))[b"result"]) == "theirs"


async def test_an_invalid_output_fails_the_step(fake_flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        many = [StepItem({"n": number}) for number in range(2001)]
        return {
            "many": StepOutput("x", many),
            "long": StepOutput("x", [StepItem({"text": "x" * 70_000})]),
            "odd": StepOutput("x", [StepItem({"text": object()})]),
            "status": StepOutput("x", [StepItem({}, "odd")]),
            "confidence": StepOutput("x", [StepItem({}, "proposed", float("nan"))]),
            "none": None,
        }[context.options["what"]]  # type: ignore[return-value]

    rig = await fake_flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    for what in ("many", "long", "odd", "status", "confidence", "none"):
        [error] = (await rig.run(job_id, "gather", {"what": what})).errors
        assert error["code"] == "step_output_invalid", what


async def test_a_step_that_raced_with_a_decision(fake_flows: FlowMaker, monkeypatch: Any) -> None:
    rig = await fake_flows((TWO, {"gather": nothing, "sort": nothing}))

    async def refuses(*args: Any) -> WorkflowOutcome:
        facts = {"code": "version_conflict", "items": ["p_001"]}
        return WorkflowOutcome(WorkflowAnswer.REFUSED, facts)

    monkeypatch.setattr(rig.workflows, "complete", refuses)
    job_id = await rig.create(TWO)
    [error] = (await rig.run(job_id, "gather")).errors
    assert error["code"] == "version_conflict"
    assert "p_001" in error["message"]


async def test_progress_is_throttled_and_reported_at_the_end(flows: FlowMaker) -> None:
    calls = 0

    async def gather(context: StepContext) -> StepOutput:
        nonlocal calls
        for number in range(1001):
            calls += 1
            await context.progress(number, 1000)
        return StepOutput("counted")

    rig = await flows((TWO, {"gather": gather, "sort": nothing}))
    job_id = await rig.create(TWO)
    await rig.run(job_id, "gather")
    page = await rig.reader_of_jobs.events(job_id, limit=500)
    reports = [json.loads(each.data) for each in page.events if each.type == "step.progress"]
    assert calls == 1001
    assert 99 <= len(reports) <= 130
    assert reports[-1]["done"] == reports[-1]["total"] == 1000
    core_job = (await rig.step(job_id, "gather")).core_job
    await rig.settled(core_job)
    core = [data for kind, _, data in await rig.parsed_events(core_job) if kind == "progress"]
    assert core[-1] == {"done": 1000, "total": 1000, "attempt": 1}


async def test_a_stopping_worker_releases_the_step(
    flows: FlowMaker, worker: WorkerIdentity
) -> None:
    begun = asyncio.Event()

    async def slow(context: StepContext) -> StepOutput:
        begun.set()
        if context.attempt == 1:
            await asyncio.Event().wait()
        return StepOutput("by the other")

    flow = (TWO, {"gather": slow, "sort": nothing})
    first = await flows(flow)
    job_id = await first.create(TWO)
    await first.execute(job_id, "gather")
    await begun.wait()
    second = await flows(flow, identity=replace_consumer(worker, "c2"))
    await first.stop(0.1)
    ended = await second.step_ended(job_id, "gather")
    assert (ended.status.value, ended.summary) == ("complete", "by the other")
    assert await second.event_types(job_id) == [
        ("job.created", ""),
        ("step.started", "gather"),
        ("step.completed", "gather"),
    ]


def replace_consumer(worker: WorkerIdentity, consumer: str) -> WorkerIdentity:
    return worker._replace(consumer=consumer)
