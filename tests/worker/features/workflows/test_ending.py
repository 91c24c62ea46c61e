"""Steps that ended elsewhere meanwhile, superseded attempts, split steps, and child processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts.rag import RagKeys
from sluice.common.features.workflows.effects import EffectStore, TermChange
from sluice.worker.errors import TransientError
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.errors import StepError, StepLost
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.features.workflows.split_steps import PartFailed, SplitStep
from tests.support.waiting import eventually
from tests.support.worker.computing import dies, double, takes_all_memory, works_for_ever
from tests.support.worker.tools import events
from tests.support.worker.workflows import (
    TWO,
    FlowMaker,
    WorkflowWorker,
    definition,
    flow_of,
    gathering,
    nothing,
)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("how", ["cancel", "fail"])
async def test_a_failed_step_cannot_succeed_later(flows: FlowMaker, how: str) -> None:
    async def gather(context: StepContext) -> StepOutput:
        effects = EffectStore(worker.client, worker.workflows)
        await effects.change_terms(context.running, keys, [TermChange("dlq", b"", b"new")])
        if how == "cancel":
            await worker.workflows.cancel(context.job_id, worker.once())
        else:
            await worker.workflows.fail(context.running, b'[{"code":"x","message":"y"}]')
        return StepOutput("too late", undo_token=context.undo_token)

    worker = await flows(gathering(gather))
    keys = RagKeys("notes", tag=worker.keys.tag)
    job_id = await worker.create(TWO)
    await worker.execute(job_id, "gather")
    result = await worker.result_of(job_id, "gather")
    assert result["superseded"] is True
    assert "summary" not in result
    ended = {"cancel": "cancelled", "fail": "failed"}[how]
    assert (await worker.step(job_id, "gather")).status.value == ended
    assert await worker.client.hgetall(keys.ontology) == {}


@pytest.mark.fakeredis_only
async def test_a_repeated_completion_returns_the_result(flows: FlowMaker, monkeypatch: Any) -> None:
    worker = await flows(gathering(nothing))
    complete = worker.workflows.complete

    async def twice(*args: Any) -> Any:
        await complete(*args)
        return await complete(*args)

    monkeypatch.setattr(worker.workflows, "complete", twice)
    job_id = await worker.create(TWO)
    await worker.execute(job_id, "gather")
    result = await worker.result_of(job_id, "gather")
    assert (result["summary"], result["items"]) == ("nothing", 0)
    assert "superseded" not in result


@pytest.mark.fakeredis_only
async def test_a_step_that_cancels_itself_fails(flows: FlowMaker) -> None:
    async def gather(context: StepContext) -> StepOutput:
        raise asyncio.CancelledError

    worker, job_id = await flow_of(flows, gather)
    record = await worker.run(job_id, "gather")
    assert record.status.value == "failed"
    assert record.errors[0]["code"] == "step_cancelled"
    assert (await worker.core_ended(job_id, "gather"))[b"status"] == b"error"


async def test_an_attempt_that_lost_its_lease_leaves_nothing(flows: FlowMaker) -> None:
    """For example one that was stalled while another attempt took over."""
    lost = 0

    async def gather(context: StepContext) -> StepOutput:
        nonlocal lost
        if not lost:
            lease = context.core.fence.lease_key
            await worker.client.hset(lease, "token", "another")
            for call in (context.put("left", b"x"), context.progress(1, 2)):
                try:
                    await call
                except StepLost:
                    lost += 1
            await worker.client.hset(lease, "token", context.core.fence.token)
        return StepOutput("done")

    worker, job_id = await flow_of(flows, gather)
    assert (await worker.run(job_id, "gather")).status.value == "complete"
    assert lost == 2
    assert await worker.client.hgetall(worker.workflows.keys.data(job_id)) == {}


class Squares(SplitStep):
    """Squares of numbers, one part each; `before` can be overridden."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []

    def most_failures(self, context: StepContext) -> int:
        return int(context.options.get("may_fail", 0))

    async def split(self, context: StepContext) -> list[Any]:
        return list(context.options["numbers"])

    async def run_part(self, context: StepContext, part: Any) -> Any:
        await context.progress(1, 2)
        await self.before(context, part)
        self.done.append((part, context.attempt))
        return object() if part == "odd" else {"square": part**2}

    async def before(self, context: StepContext, part: Any) -> None:
        """Hook called before each part."""

    async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
        await context.progress(1, 1)
        squares = [
            result.code if isinstance(result, PartFailed) else result["square"]
            for result in results
        ]
        return StepOutput(f"{len(squares)} squares", [StepItem({"of": each}) for each in squares])


async def whole(context: StepContext) -> StepOutput:
    found = [json.loads(item.payload)["of"] for item in await context.items("gather")]
    return StepOutput(f"{sum(found)} in all")


def numbers(count: int, **more: Any) -> dict[str, Any]:
    return {"numbers": list(range(count)), **more}


async def squares(worker: WorkflowWorker, job_id: str) -> list[Any]:
    return [each["of"] for each in await worker.payloads(job_id, "gather")]


async def test_parts_are_done_and_joined_in_order(flows: FlowMaker) -> None:
    squaring = Squares()
    worker = await flows(gathering(squaring, whole), max_inflight=3)
    options = {"gather": json.dumps(numbers(12)).encode()}
    job_id = await worker.create(TWO, "0123456789ab", auto_advance=True, options=options)
    ended = await worker.step_ended(job_id, "sort")
    for step in ("gather", "sort"):  # the next step has the same owner
        assert (await worker.step(job_id, step)).core_job.endswith("0123456789ab")
        assert (await worker.core_ended(job_id, step))[b"task"] == b"tool"
    assert (await worker.snapshot(job_id)).status.value == "completed"
    assert ended.summary == f"{sum(n * n for n in range(12))} in all"
    assert await squares(worker, job_id) == [n * n for n in range(12)]
    assert sorted(squaring.done) == [(n, 1) for n in range(12)]
    record = await worker.step(job_id, "gather")
    assert (record.parts, record.done, record.total) == (12, 12, 12)
    types = await worker.event_types(job_id, progress=True)
    assert types.count(("step.progress", "gather")) == 12  # one per part, and no others
    assert [kind for kind, _ in types if kind != "step.progress"] == [
        "job.created", "step.started", "step.completed", "step.started", "step.completed",
        "job.completed",
    ]  # fmt: skip
    await worker.all_acked()
    assert not await worker.client.exists(worker.workflows.keys.parts(job_id))


@pytest.mark.fakeredis_only
async def test_a_part_that_fails_fails_the_step_and_the_others_stop(flows: FlowMaker) -> None:
    released = asyncio.Event()

    class OneFails(Squares):
        async def before(self, context: StepContext, part: Any) -> None:
            if part == 2:
                raise StepError("source_failed", "number 2 is out of order")
            await released.wait()

    worker, job_id = await flow_of(flows, OneFails(), whole, max_inflight=5)
    ended = await worker.run(job_id, "gather", numbers(4))
    assert ended.status.value == "failed"
    assert list(ended.errors) == [{"code": "source_failed", "message": "number 2 is out of order"}]
    released.set()
    await worker.all_acked()
    assert (await worker.result_of(job_id, "gather"))["superseded"] is True
    assert await squares(worker, job_id) == []
    types = await worker.event_types(job_id)
    assert types[-2:] == [("step.failed", "gather"), ("job.failed", "gather")]


@pytest.mark.fakeredis_only
async def test_number_and_failures_of_parts(flows: FlowMaker) -> None:
    class OddFail(Squares):
        async def before(self, context: StepContext, part: Any) -> None:
            if part != "odd" and part % 2:
                raise StepError("odd", f"{part} is odd")

    worker, job_id = await flow_of(flows, OddFail(), whole)
    await worker.run(job_id, "gather", numbers(5, may_fail=2))
    assert await squares(worker, job_id) == [0, "odd", 4, "odd", 16]
    [error] = (await worker.run(job_id, "gather", numbers(5, may_fail=1))).errors
    assert error == {"code": "odd", "message": "2 of 5 parts failed, 1 allowed: 1 is odd"}
    [error] = (await worker.run(job_id, "gather", numbers(257))).errors
    assert "257 parts" in error["message"]
    # Its result must be JSON.
    [error] = (await worker.run(job_id, "gather", {"numbers": [0, "odd"]})).errors
    assert "must be JSON" in error["message"]
    # A single part is not split.
    for count in (0, 1):
        job_id = await worker.create(TWO)
        ended = await worker.run(job_id, "gather", numbers(count))
        assert (ended.status.value, ended.parts) == ("complete", 0)
        assert await squares(worker, job_id) == [0] * count


@pytest.mark.fakeredis_only
async def test_a_part_is_tried_again_and_the_others_are_not(flows: FlowMaker) -> None:
    class Stumbles(Squares):
        async def before(self, context: StepContext, part: Any) -> None:
            if part in (0, 3) and context.attempt < 3:
                raise TransientError("not yet")

    step = Stumbles()
    worker, job_id = await flow_of(flows, step, whole)
    await worker.run(job_id, "gather", numbers(5))
    assert sorted(step.done) == [(0, 3), (1, 1), (2, 1), (3, 3), (4, 1)]
    assert await squares(worker, job_id) == [0, 1, 4, 9, 16]


async def test_a_crash_while_joining_repeats_no_part(flows: FlowMaker) -> None:
    class JoinsSlowly(Squares):
        joins = 0

        async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
            self.joins += 1
            if self.joins == 1:
                await asyncio.Event().wait()
            return await super().join(context, results)

    step = JoinsSlowly()
    flow = gathering(step, whole)
    first = await flows(flow, max_inflight=8)
    job_id = await first.create(TWO)
    await first.execute(job_id, "gather", numbers(4))
    await eventually(lambda: step.joins == 1)
    second = await flows(flow, consumer="c2")
    await first.stop(0.1)
    ended = await second.step_ended(job_id, "gather")
    assert ended.status.value == "complete"
    assert sorted(step.done) == [(n, 1) for n in range(4)]
    assert await squares(second, job_id) == [0, 1, 4, 9]
    assert step.joins == 2


COMPUTES = definition("gather", max_attempts=2)


async def computes(context: StepContext) -> StepOutput:
    path = context.options.get("path")
    if path:
        await context.compute(works_for_ever, path)
    if context.options.get("dies") and context.attempt == 1:
        await context.compute(dies)
    if context.options.get("greedy"):
        try:
            await context.compute(takes_all_memory)
        except StepError as error:  # a step may handle it
            raise StepError("was_greedy", f"{error.code}: {error}") from error
    found = await asyncio.gather(*(context.compute(double, number) for number in range(5)))
    return StepOutput("doubled", [StepItem({"of": each}) for each in found])


@pytest.fixture
async def computing(flows: FlowMaker) -> WorkflowWorker:
    made: WorkflowWorker = await flows((COMPUTES, {"gather": computes}))
    return made


@pytest.mark.fakeredis_only
async def test_a_step_computes_in_a_process(computing: WorkflowWorker) -> None:
    job_id = await computing.create(COMPUTES)
    await computing.run(job_id, "gather")
    assert [each["of"] for each in await computing.payloads(job_id, "gather")] == [0, 2, 4, 6, 8]
    # A process that dies costs an attempt.
    job_id = await computing.create(COMPUTES)
    ended = await computing.run(job_id, "gather", {"dies": True})
    assert ended.status.value == "complete"
    await computing.settled(ended.core_job)
    [retry] = await events(computing, ended.core_job, "retry")
    assert retry["kind"] == "compute_crashed"
    # A step that wants too much memory fails for good.
    job_id = await computing.create(COMPUTES)
    ended = await computing.run(job_id, "gather", {"greedy": True})
    assert ended.status.value == "failed"
    assert ended.attempt == 1
    [error] = ended.errors
    assert error["code"] == "was_greedy"
    assert error["message"].startswith("out_of_memory: the call needs more than 1024 MB")


@pytest.mark.fakeredis_only
async def test_the_end_of_a_step_ends_its_process(
    computing: WorkflowWorker, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    job_id = await computing.create(COMPUTES)
    await computing.execute(job_id, "gather", {"path": str(path)})
    pid = int(await eventually(lambda: path.exists() and path.read_text(), 30))
    core_job = (await computing.step(job_id, "gather")).core_job
    await computing.cancel(core_job)
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert (await computing.step_ended(job_id, "gather")).status.value == "cancelled"
    assert (await computing.core_ended(job_id, "gather"))[b"status"] == b"canceled"
    # It ended on request and was not forced.
    assert (await computing.parsed_events(core_job))[-1][2]["stage"] == "cooperative"
