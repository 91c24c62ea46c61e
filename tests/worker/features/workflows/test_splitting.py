"""Split steps: parts run in any worker, and the last one joins them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from common.jobs.store import WorkerIdentity
from tests.conftest import eventually
from tests.worker.features.workflows.kit import FlowMaker, WorkflowRig, definition
from worker.errors import TransientError
from worker.features.workflows.context import StepContext
from worker.features.workflows.errors import StepError
from worker.features.workflows.output import StepItem, StepOutput
from worker.features.workflows.split_steps import PartFailed, SplitStep

FLOW = definition("gather", "sort")


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
        return {"square": part**2}

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


async def squares(rig: WorkflowRig, job_id: str) -> list[Any]:
    return [each["of"] for each in await rig.payloads(job_id, "gather")]


async def test_parts_are_done_and_joined_in_order(flows: FlowMaker) -> None:
    step = Squares()
    rig = await flows((FLOW, {"gather": step, "sort": whole}), max_inflight=3)
    job_id = await rig.create(
        FLOW, auto_advance=True, options={"gather": json.dumps(numbers(12)).encode()}
    )
    ended = await rig.step_ended(job_id, "sort")
    assert ended.summary == f"{sum(n * n for n in range(12))} in all"
    assert await squares(rig, job_id) == [n * n for n in range(12)]
    assert sorted(step.done) == [(n, 1) for n in range(12)]
    record = await rig.step(job_id, "gather")
    assert (record.parts, record.done, record.total) == (12, 12, 12)
    types = await rig.event_types(job_id, progress=True)
    assert types.count(("step.progress", "gather")) == 12  # one per part, and no others
    assert [kind for kind, _ in types if kind != "step.progress"] == [
        "job.created", "step.started", "step.completed", "step.started", "step.completed",
        "job.completed",
    ]  # fmt: skip
    await rig.all_acked()
    assert not await rig.client.exists(rig.workflows.keys.parts(job_id))


@pytest.mark.parametrize("count", [0, 1])
async def test_a_single_part_is_not_split(fake_flows: FlowMaker, count: int) -> None:
    rig = await fake_flows((FLOW, {"gather": Squares(), "sort": whole}))
    job_id = await rig.create(FLOW)
    ended = await rig.run(job_id, "gather", numbers(count))
    assert (ended.status.value, ended.parts) == ("complete", 0)
    assert await squares(rig, job_id) == [0] * count


async def test_a_part_that_fails_fails_the_step_and_the_others_stop(flows: FlowMaker) -> None:
    released = asyncio.Event()

    class OneFails(Squares):
        async def before(self, context: StepContext, part: Any) -> None:
            if part == 2:
                raise StepError("source_failed", "number 2 is out of order")
            await released.wait()

    rig = await flows((FLOW, {"gather": OneFails(), "sort": whole}), max_inflight=5)
    job_id = await rig.create(FLOW)
    ended = await rig.run(job_id, "gather", numbers(4))
    assert ended.status.value == "failed"
    assert list(ended.errors) == [{"code": "source_failed", "message": "number 2 is out of order"}]
    released.set()
    await rig.all_acked()
    assert (await rig.result_of(job_id, "gather"))["superseded"] is True
    assert await squares(rig, job_id) == []
    assert (await rig.event_types(job_id))[-2:] == [
        ("step.failed", "gather"),
        ("job.failed", "gather"),
    ]


async def test_some_parts_may_fail(fake_flows: FlowMaker) -> None:
    class OddFail(Squares):
        async def before(self, context: StepContext, part: Any) -> None:
            if part % 2:
                raise StepError("odd", f"{part} is odd")

    rig = await fake_flows((FLOW, {"gather": OddFail(), "sort": whole}))
    job_id = await rig.create(FLOW)
    await rig.run(job_id, "gather", numbers(5, may_fail=2))
    assert await squares(rig, job_id) == [0, "odd", 4, "odd", 16]
    [error] = (await rig.run(job_id, "gather", numbers(5, may_fail=1))).errors
    assert error == {"code": "odd", "message": "2 of 5 parts failed, 1 allowed: 1 is odd"}


async def test_a_part_is_tried_again_and_the_others_are_not(flows: FlowMaker) -> None:
    class Stumbles(Squares):
        async def before(self, context: StepContext, part: Any) -> None:
            if part in (0, 3) and context.attempt < 3:
                raise TransientError("not yet")

    step = Stumbles()
    rig = await flows((FLOW, {"gather": step, "sort": whole}))
    job_id = await rig.create(FLOW)
    await rig.run(job_id, "gather", numbers(5))
    assert sorted(step.done) == [(0, 3), (1, 1), (2, 1), (3, 3), (4, 1)]
    assert await squares(rig, job_id) == [0, 1, 4, 9, 16]


async def test_a_crash_while_joining_repeats_no_part(
    flows: FlowMaker, worker: WorkerIdentity
) -> None:
    class JoinsSlowly(Squares):
        joins = 0

        async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
            self.joins += 1
            if self.joins == 1:
                await asyncio.Event().wait()
            return await super().join(context, results)

    step = JoinsSlowly()
    flow = (FLOW, {"gather": step, "sort": whole})
    first = await flows(flow, max_inflight=8)
    job_id = await first.create(FLOW)
    await first.execute(job_id, "gather", numbers(4))
    await eventually(lambda: step.joins == 1)
    second = await flows(flow, identity=worker._replace(consumer="c2"))
    await first.stop(0.1)
    ended = await second.step_ended(job_id, "gather")
    assert ended.status.value == "complete"
    assert sorted(step.done) == [(n, 1) for n in range(4)]
    assert await squares(second, job_id) == [0, 1, 4, 9]
    assert step.joins == 2


async def test_too_many_parts_and_invalid_results(fake_flows: FlowMaker) -> None:
    class Odd(Squares):
        async def run_part(self, context: StepContext, part: Any) -> Any:
            return object()

    rig = await fake_flows((FLOW, {"gather": Odd(), "sort": whole}))
    job_id = await rig.create(FLOW)
    [error] = (await rig.run(job_id, "gather", numbers(257))).errors
    assert "257 parts" in error["message"]
    [error] = (await rig.run(job_id, "gather", numbers(2))).errors
    assert "must be JSON" in error["message"]
