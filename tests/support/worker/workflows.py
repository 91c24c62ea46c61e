"""A worker that runs workflows within the test's process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workflow.statuses import StepKind
from sluice.common.features.workflows.definitions import (
    ReviewOptions,
    StepDefinition,
    WorkflowDefinition,
)
from sluice.common.features.workflows.reader import WorkflowReader
from sluice.common.features.workflows.records import StepRecord, WorkflowJob
from sluice.common.features.workflows.types import (
    ExecuteCommand,
    IdempotencyClaim,
    NewWorkflow,
    StepIds,
    WorkflowOutcome,
)
from sluice.common.jobs.limits import AdmissionLimits
from sluice.common.jobs.store import WorkerIdentity
from sluice.worker.features.workflows import service as workflow_service
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.output import StepOutput
from sluice.worker.features.workflows.registry import Step
from sluice.worker.features.workflows.service import WorkflowService
from sluice.worker.handlers import tool
from sluice.worker.registry import Registry
from tests.support.servers import Backend
from tests.support.waiting import eventually
from tests.support.worker.harness import WorkerHarness

ENDED = (b"complete", b"failed", b"cancelled", b"waiting_input")


def definition(*names: str, name: str = "flow_v1", **of_first: Any) -> WorkflowDefinition:
    """A workflow with steps of equal weight; a step called `review` reviews the previous one."""
    steps = []
    for index, each in enumerate(names):
        own = of_first if index == 0 else {}
        if each == "review":
            own = {"kind": StepKind.REVIEW, "reviews": names[index - 1]}
        elif names[index + 1 : index + 2] == ("review",):
            own = {**own, "proposes": True}
        weight = 1.0 - (len(names) - 1) / len(names) if index == 0 else 1 / len(names)
        steps.append(StepDefinition(each, f"{each[0]}{index}", each, weight, **own))
    return WorkflowDefinition(name, tuple(steps))


async def nothing(context: StepContext) -> StepOutput:
    """A step without work."""
    return StepOutput("nothing")


TWO = definition("gather", "sort")


def gathering(gather: Step, sort: Step = nothing) -> tuple[WorkflowDefinition, dict[str, Step]]:
    """A workflow with these two steps."""
    return TWO, {"gather": gather, "sort": sort}


def registry_of(*workflows: tuple[WorkflowDefinition, Mapping[str, Step]]) -> Registry:
    """A registry with only these workflows."""
    registry = Registry()
    tool.add_handler(registry)
    for declared, steps in workflows:
        registry.workflows.add(declared, steps)
    workflow_service.add_service(registry, 60.0)
    return registry


class WorkflowWorker(WorkerHarness):
    """A worker with workflows, and the gateway's operations on them."""

    def __init__(
        self,
        backend: Backend,
        keys: JobKeys,
        worker: WorkerIdentity,
        registry: Registry,
        **options: Any,
    ) -> None:
        super().__init__(backend, keys, worker, registry, **options)
        self.registry = registry
        self.workflows = self.consumer.workflows
        self.reader_of_jobs = WorkflowReader(self.client, self.workflows.keys)
        self.admission = AdmissionLimits(worker.group, 10**6, 600)

    @property
    def service(self) -> WorkflowService:
        [found] = [each for each in self.registry.services if isinstance(each, WorkflowService)]
        return found

    async def open(self) -> None:
        """Start as a worker does."""
        if not await self.client.exists(self.keys.queue):
            await self.group()
        for service in self.registry.services:
            await service.start(self.services)
        self.start(recover=True)

    async def close(self) -> None:
        await super().close()
        for service in self.registry.services:
            await service.close()

    # -- as a gateway ----------------------------------------------------------------------

    def once(self) -> IdempotencyClaim:
        return IdempotencyClaim(self.workflows.keys.answer("test", uuid.uuid4().hex), "print", 600)

    def ids(self, tail: str = "") -> StepIds:
        core_job = str(uuid.uuid4())
        return StepIds(
            f"ex_{uuid.uuid4().hex[:8]}", core_job[: -len(tail)] + tail if tail else core_job
        )

    async def create(self, declared: WorkflowDefinition, tail: str = "", **new: Any) -> str:
        """Create a job; returns its id."""
        new.setdefault("review", ReviewOptions())
        job = NewWorkflow(declared, "20260214", 3600, tail=tail, **new)
        outcome = await self.workflows.create(job, self.once(), self.ids(tail), self.admission)
        assert outcome.answer.value == "ok", outcome
        return str(outcome.facts["job_id"])

    async def execute(
        self, job_id: str, step: str, options: Any = None, tail: str = "", **wanted: Any
    ) -> WorkflowOutcome:
        encoded = None if options is None else json.dumps(options).encode()
        command = ExecuteCommand(job_id, step, encoded, **wanted)
        outcome = await self.workflows.execute(command, self.once(), self.ids(tail), self.admission)
        assert outcome.answer.value == "ok", outcome
        return outcome

    async def snapshot(self, job_id: str) -> WorkflowJob:
        job = await self.reader_of_jobs.snapshot(job_id)
        assert job is not None
        return job

    async def step(self, job_id: str, step: str) -> StepRecord:
        return (await self.snapshot(job_id)).steps[step]

    async def step_ended(self, job_id: str, step: str) -> StepRecord:
        """Wait until a step has ended."""

        steps, field = self.workflows.keys.steps(job_id), f"{step}.status"

        async def ended() -> bool:  # cheaper than reading the whole job
            return await self.client.hget(steps, field) in ENDED

        await eventually(ended, 20)
        return await self.step(job_id, step)

    async def run(self, job_id: str, step: str, options: Any = None) -> StepRecord:
        """Execute a step and wait until it has ended."""
        await self.execute(job_id, step, options)
        return await self.step_ended(job_id, step)

    async def run_tool(self, name: str, args: Any, status: bytes = b"done") -> str:
        """Run a job of an internal tool to this end; returns its id."""
        payload = json.dumps({"tool": f"workflow.{name}", "args": args}).encode()
        return await self.run_job(status, task="tool", payload=payload)

    async def core_ended(self, job_id: str, step: str) -> dict[bytes, bytes]:
        """Wait until the core job of a step has ended; returns its hash."""
        core_job = (await self.step(job_id, step)).core_job
        await self.settled(core_job)
        return await self.job(core_job)

    async def result_of(self, job_id: str, step: str) -> Any:
        """Wait until the core job of a step has ended; returns its result."""
        record = await self.core_ended(job_id, step)
        assert record[b"status"] == b"done", record
        return json.loads(record[b"result"])

    async def event_types(self, job_id: str, *, progress: bool = False) -> list[tuple[str, str]]:
        """Types and steps of a workflow job's events."""
        page = await self.reader_of_jobs.events(job_id, limit=500)
        return [
            (event.type, event.step)
            for event in page.events
            if progress or event.type != "step.progress"
        ]

    async def payloads(self, job_id: str, step: str) -> list[Any]:
        """Payloads of the items of a step."""
        items = await self.reader_of_jobs.step_items(job_id, step)
        return [json.loads(item.payload) for item in items]


FlowMaker = Callable[..., Any]


async def flow_of(
    flows: FlowMaker, gather: Step, sort: Step = nothing, **options: Any
) -> tuple[WorkflowWorker, str]:
    """A worker with a workflow of two steps, and a job of it."""
    worker: WorkflowWorker = await flows(gathering(gather, sort), **options)
    return worker, await worker.create(TWO)
