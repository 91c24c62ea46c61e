"""A workflow with no-op steps: what remains is the overhead of going from one step to the next."""

from __future__ import annotations

from sluice.common.contracts.workflow.statuses import ItemStatus, StepKind
from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.features.workflows.registry import Workflows

NAME = "bench_v1"
_WORK = ("one", "two", "three", "four")


def _definition() -> WorkflowDefinition:
    work = tuple(StepDefinition(name, name, name, 0.1) for name in _WORK)
    return WorkflowDefinition(
        NAME,
        (
            *work,
            StepDefinition("suggest", "p", "proposal", 0.2, proposes=True),
            StepDefinition("review", "r", "review", 0.2, kind=StepKind.REVIEW, reviews="suggest"),
            StepDefinition("last", "z", "last", 0.2, settles=True),
        ),
    )


async def noop(context: StepContext) -> StepOutput:
    return StepOutput("noop")


async def suggest(context: StepContext) -> StepOutput:
    """One proposal to decide on."""
    return StepOutput("one", [StepItem({"to": "it"}, ItemStatus.PROPOSED.value, 0.5)])


def register_workflows(workflows: Workflows) -> None:
    steps = dict.fromkeys((*_WORK, "last"), noop)
    workflows.add(_definition(), {**steps, "suggest": suggest})
