"""Which workflows a worker does, and which function does which step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from common.contracts.workflow import StepKind
from common.workflow.definition import WorkflowDefinition
from worker import functions
from worker.workflows.splitting import SplitStep

if TYPE_CHECKING:
    from worker.workflows.context import StepContext
    from worker.workflows.output import StepOutput

#: `async def step(context) -> StepOutput`.
StepFunction = Callable[["StepContext"], Awaitable["StepOutput"]]
#: One of them, or a step that is done in parts.
Step = StepFunction | SplitStep


class Workflow(NamedTuple):
    """A declaration, and what does its steps."""

    definition: WorkflowDefinition
    steps: Mapping[str, Step]


class Workflows:
    """Workflows by name."""

    def __init__(self) -> None:
        self._workflows: dict[str, Workflow] = {}

    def add(self, definition: WorkflowDefinition, steps: Mapping[str, Step]) -> None:
        """Let `steps` do what `definition` declares: one function for each step of kind `work`.

        A workflow that is there already, with the very same declaration, gets the functions given
        here in place of its own; those that are not named stay.
        """
        known = self._workflows.get(definition.name)
        if known is not None:
            if known.definition != definition:
                raise ValueError(
                    f"workflow {definition.name!r} is there already and has other steps; give "
                    "yours another name, such as the same with _v2"
                )
            steps = {**known.steps, **steps}
        _check(definition, steps)
        self._workflows[definition.name] = Workflow(definition, dict(steps))

    def get(self, name: str) -> Workflow | None:
        """The workflow of that name."""
        return self._workflows.get(name)

    def __iter__(self) -> Iterator[Workflow]:
        return iter(self._workflows.values())

    def __len__(self) -> int:
        return len(self._workflows)


def _check(definition: WorkflowDefinition, steps: Mapping[str, Step]) -> None:
    work = {step.name for step in definition.steps if step.kind is StepKind.WORK}
    reviews = {step.name for step in definition.steps} - work
    of = f"of workflow {definition.name!r}"
    if missing := sorted(work - steps.keys()):
        raise ValueError(f"nobody does {', '.join(missing)} {of}; name a function for each")
    if idle := sorted(steps.keys() & reviews):
        raise ValueError(f"{', '.join(idle)} {of} waits for a person and takes no function")
    if unknown := sorted(steps.keys() - work):
        raise ValueError(f"there is no step {', '.join(unknown)} {of}")
    for name, step in steps.items():
        if not isinstance(step, SplitStep) and not functions.is_async(step):
            raise TypeError(f"step {name!r} {of} must be `async def step(context)` or a SplitStep")
