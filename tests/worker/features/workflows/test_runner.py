"""Running steps: context, output and end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from sluice.worker.errors import JobError, TransientError
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.errors import StepError
from sluice.worker.features.workflows.output import StepItem, StepOutput
from tests.support.waiting import eventually
from tests.support.worker.workflows import (
    TWO,
    FlowMaker,
    definition,
    flow_of,
    gathering,
    nothing,
)


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

    worker = await flows(gathering(gather, sort))
    job_id = await worker.create(TWO, namespace="notes", metadata=b'{"by":"me"}')
    first = await worker.run(job_id, "gather", {"names": ["b", "a"]})
    assert (first.status.value, first.summary, first.count) == ("complete", "Found 2", 2)
    assert (await worker.snapshot(job_id)).status.value == "running"
    second = await worker.run(job_id, "sort")
    assert (second.status.value, second.summary) == ("complete", "Sorted")
    job = await worker.snapshot(job_id)
    assert (job.status.value, job.progress) == ("completed", 1.0)
    [item] = await worker.reader_of_jobs.step_items(job_id, "sort")
    assert (item.id, item.status.value, item.confidence) == ("s1_001", "proposed", 0.5)
    assert json.loads(item.payload) == {"names": ["a", "b"]}
    about = {"workflow_job_id": job_id, "step": "gather", "execution_id": first.execution}
    assert await worker.result_of(job_id, "gather") == {**about, "items": 2, "summary": "Found 2"}
    assert await worker.event_types(job_id) == [
        ("job.created", ""), ("step.started", "gather"), ("step.completed", "gather"),
        ("step.started", "sort"), ("step.completed", "sort"), ("job.completed", "sort"),
    ]  # fmt: skip
    await worker.all_acked()


@pytest.mark.fakeredis_only
async def test_a_failed_step_has_a_reason_and_can_be_resumed(flows: FlowMaker) -> None:
    broken = True

    async def sort(context: StepContext) -> StepOutput:
        if broken:
            raise StepError("no_photos", "there are none in album 7")
        return StepOutput("Sorted")

    worker, job_id = await flow_of(flows, nothing, sort)
    failed = await worker.run(job_id, "sort")
    assert failed.status.value == "failed"
    assert list(failed.errors) == [{"code": "no_photos", "message": "there are none in album 7"}]
    assert (await worker.core_ended(job_id, "sort"))[b"status"] == b"error"
    job = await worker.snapshot(job_id)
    assert (job.status.value, job.draft_state.value) == ("failed", "failed")
    types = await worker.event_types(job_id)
    assert types[-2:] == [("step.failed", "sort"), ("job.failed", "sort")]
    broken = False
    await worker.execute(job_id, "sort")
    ended = await worker.step_ended(job_id, "sort")
    assert (ended.status.value, ended.attempt, ended.errors) == ("complete", 2, ())
    assert (await worker.step(job_id, "gather")).attempt == 1


@pytest.mark.fakeredis_only
async def test_other_failures_are_step_failed_with_their_kind(flows: FlowMaker) -> None:
    seen: list[tuple[int, str]] = []

    async def gather(context: StepContext) -> StepOutput:
        if context.options["what"] == "once busy":
            seen.append((context.attempt, context.step_record("gather").status.value))
            if context.attempt == 2:
                return StepOutput("at last")
            raise TransientError("not yet")
        if context.options["what"] == "slow":
            await asyncio.Event().wait()
        raise {
            "bug": ZeroDivisionError("1/0"),
            "job": JobError("cannot be done"),
            "coded": StepError("step_lost", "a reserved code"),
            "busy": TransientError("never"),
        }[context.options["what"]]

    declared = definition("gather", max_attempts=2, timeout_s=0.2)
    worker = await flows((declared, {"gather": gather}))
    job_id = await worker.create(declared)
    for what, code, message, kind in (
        ("bug", "step_failed", "1/0", "ZeroDivisionError"),
        ("job", "step_failed", "cannot be done", "handler_error"),
        ("coded", "step_lost", "a reserved code", None),
        ("busy", "step_failed", "never", "transient_error"),
    ):
        wanted = {"code": code, "message": message, **({"kind": kind} if kind else {})}
        assert list((await worker.run(job_id, "gather", {"what": what})).errors) == [wanted]
    assert len(await worker.dead_letters()) == 2  # "bug" and "busy", after two attempts
    [error] = (await worker.run(job_id, "gather", {"what": "slow"})).errors
    assert (error["code"], error["kind"]) == ("step_failed", "timeout")
    assert "0.2 s" in error["message"]
    # Temporary failures are retried within the step.
    job_id = await worker.create(declared)
    ended = await worker.run(job_id, "gather", {"what": "once busy"})
    assert (ended.status.value, ended.attempt) == ("complete", 1)
    assert seen == [(1, "running"), (2, "running")]
    types = [kind for kind, _ in await worker.event_types(job_id)]
    assert types == ["job.created", "step.started", "step.completed", "job.completed"]


@pytest.mark.fakeredis_only
async def test_a_canceled_core_job_cancels_the_step(flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        await context.core.wait_for_cancel()
        context.check_cancelled()
        raise AssertionError

    worker, job_id = await flow_of(flows, gather)
    await worker.execute(job_id, "gather")
    core_job = (await worker.step(job_id, "gather")).core_job
    await eventually(lambda: worker.executor.running)
    await worker.cancel(core_job)
    ended = await worker.step_ended(job_id, "gather")
    assert ended.status.value == "cancelled"
    assert [error["code"] for error in ended.errors] == ["step_cancelled"]
    assert await worker.settled(core_job) == b"canceled"


@pytest.mark.fakeredis_only
async def test_a_cancelled_workflow_stops_its_step(flows: FlowMaker) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def gather(context: StepContext) -> StepOutput:
        begun.set()
        await stop.wait()
        await context.progress(1, 2)
        raise AssertionError("it was asked to stop")

    worker, job_id = await flow_of(flows, gather)
    await worker.execute(job_id, "gather")
    await begun.wait()
    await worker.workflows.cancel(job_id, worker.once())
    before = await worker.event_types(job_id, progress=True)
    stop.set()
    assert (await worker.result_of(job_id, "gather"))["superseded"] is True
    assert await worker.event_types(job_id, progress=True) == before
    assert (await worker.snapshot(job_id)).status.value == "cancelled"


@pytest.mark.fakeredis_only
async def test_superseded_executions_are_stopped(flows: FlowMaker) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def gather(context: StepContext) -> StepOutput:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    worker, job_id = await flow_of(flows, gather)
    await worker.execute(job_id, "gather")
    await begun.wait()
    assert await worker.service.runner.drop_superseded() == 0
    await worker.workflows.cancel(job_id, worker.once())
    assert await worker.service.runner.drop_superseded() == 1
    await asyncio.wait_for(stopped.wait(), 10)
    assert (await worker.result_of(job_id, "gather"))["superseded"] is True


@pytest.mark.fakeredis_only
async def test_superseded_and_invalid_jobs_do_nothing(flows: FlowMaker) -> None:
    ran = 0

    async def gather(context: StepContext) -> StepOutput:
        nonlocal ran
        ran += 1
        return StepOutput("once")

    worker, job_id = await flow_of(flows, gather)
    ended = await worker.run(job_id, "gather")
    before = await worker.event_types(job_id)
    about = {"workflow_job_id": job_id, "step": "gather", "execution_id": ended.execution}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (about, {**about, "items": 0, "summary": "once"}),
        ({**about, "execution_id": "ex_00000000"}, {"superseded": True}),
        ({**about, "step": "sort"}, {"superseded": True}),
        ({**about, "step": "nonsense"}, {"superseded": True}),
        ({**about, "workflow_job_id": "wf_20260214_999"}, {"superseded": True}),
    ]
    for args, result in cases:
        found = await worker.result(await worker.run_tool("step", args))
        assert result.items() <= found.items()
    assert ran == 1
    assert await worker.event_types(job_id) == before
    # Invalid arguments.
    good = {"workflow_job_id": "wf_20260214_001", "step": "gather", "execution_id": "ex_00000000"}
    wrong = {"workflow_job_id": ["job:1"], "step": [3], "execution_id": ["1"], "part": [True, -1]}
    changed = ({**good, name: value} for name, values in wrong.items() for value in values)
    for args in (None, {}, [], *changed):
        core_job = await worker.run_tool("step", args, b"error")
        assert (await worker.error(core_job))["kind"] == "invalid_payload"
    # Unknown workflows and steps.
    job_id = await worker.create(definition("gather", name="theirs_v1"))
    [error] = (await worker.run(job_id, "gather")).errors
    assert error["code"] == "unknown_workflow"
    assert "WORKER_HANDLERS" in error["message"]
    job_id = await worker.create(definition("gather", "melt", name="flow_v1"))
    [error] = (await worker.run(job_id, "melt")).errors
    assert error["code"] == "unknown_step"


@pytest.mark.fakeredis_only
async def test_an_invalid_or_late_output_fails_the_step(
    flows: FlowMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gather(context: StepContext) -> StepOutput:
        many = [StepItem({"n": number}) for number in range(2001)]
        return {
            "many": StepOutput("x", many),
            "long": StepOutput("x", [StepItem({"text": "x" * 70_000})]),
            "odd": StepOutput("x", [StepItem({"text": object()})]),
            "status": StepOutput("x", [StepItem({}, "odd")]),
            "confidence": StepOutput("x", [StepItem({}, "proposed", float("nan"))]),
            "none": None,
            "late": StepOutput("x"),
        }[context.options["what"]]  # type: ignore[return-value]

    worker, job_id = await flow_of(flows, gather)
    for what in ("many", "long", "odd", "status", "confidence", "none"):
        [error] = (await worker.run(job_id, "gather", {"what": what})).errors
        assert error["code"] == "step_output_invalid", what

    async def refuses(*args: Any) -> WorkflowOutcome:
        facts = {"code": "version_conflict", "items": ["p_001"]}
        return WorkflowOutcome(WorkflowAnswer.REFUSED, facts)

    monkeypatch.setattr(worker.workflows, "complete", refuses)  # it raced with a decision
    [error] = (await worker.run(job_id, "gather", {"what": "late"})).errors
    assert error["code"] == "version_conflict"
    assert "p_001" in error["message"]


@pytest.mark.fakeredis_only
async def test_progress_is_throttled_and_reported_at_the_end(flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        for number in range(1001):
            await context.progress(number, 1000)
        return StepOutput("counted")

    worker, job_id = await flow_of(flows, gather)
    await worker.run(job_id, "gather")
    page = await worker.reader_of_jobs.events(job_id, limit=500)
    reports = [json.loads(each.data) for each in page.events if each.type == "step.progress"]
    assert 99 <= len(reports) <= 130
    assert reports[-1]["done"] == reports[-1]["total"] == 1000
    core_job = (await worker.step(job_id, "gather")).core_job
    await worker.settled(core_job)
    core = [data for kind, _, data in await worker.parsed_events(core_job) if kind == "progress"]
    assert core[-1] == {"done": 1000, "total": 1000, "attempt": 1}


async def test_a_stopping_worker_releases_the_step(flows: FlowMaker) -> None:
    begun = asyncio.Event()

    async def slow(context: StepContext) -> StepOutput:
        begun.set()
        if context.attempt == 1:
            await asyncio.Event().wait()
        return StepOutput("by the other")

    flow = gathering(slow)
    first = await flows(flow)
    job_id = await first.create(TWO)
    await first.execute(job_id, "gather")
    await begun.wait()
    second = await flows(flow, consumer="c2")
    await first.stop(0.1)
    ended = await second.step_ended(job_id, "gather")
    assert (ended.status.value, ended.summary) == ("complete", "by the other")
    types = [kind for kind, _ in await second.event_types(job_id)]
    assert types == ["job.created", "step.started", "step.completed"]
