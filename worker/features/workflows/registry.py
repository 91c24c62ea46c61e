"""The workflows of a worker and the functions of their steps."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio import Redis

from sluice.common.contracts.jobs import TTL_MAX_S
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import StepKind
from sluice.common.features.workflows.definitions import WorkflowDefinition
from sluice.common.jobs.store import read_reply
from sluice.worker import registry
from sluice.worker.features.workflows.split_steps import SplitStep

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext
    from sluice.worker.features.workflows.output import StepOutput

#: `async def step(context) -> StepOutput`.
StepFunction = Callable[["StepContext"], Awaitable["StepOutput"]]
#: A step function, or a step that runs in parts.
Step = StepFunction | SplitStep


class Workflow(NamedTuple):
    """A definition and the implementation of its steps."""

    definition: WorkflowDefinition
    steps: Mapping[str, Step]


class Workflows:
    """Workflows by name."""

    def __init__(self) -> None:
        self._workflows: dict[str, Workflow] = {}

    def add(self, definition: WorkflowDefinition, steps: Mapping[str, Step]) -> None:
        """Register a workflow: one function for each step of kind `work`.

        If it is registered already with the same definition, the given functions replace the
        registered ones; others are kept.
        """
        known = self._workflows.get(definition.name)
        if known is not None:
            if known.definition != definition:
                raise ValueError(
                    f"workflow {definition.name!r} is already registered with other steps; give "
                    "yours another name, for example with _v2"
                )
            steps = {**known.steps, **steps}
        _check(definition, steps)
        self._workflows[definition.name] = Workflow(definition, dict(steps))

    def get(self, name: str) -> Workflow | None:
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
        raise ValueError(f"no function for {', '.join(missing)} {of}; add one for each")
    if idle := sorted(steps.keys() & reviews):
        raise ValueError(f"{', '.join(idle)} {of} is a review and takes no function")
    if unknown := sorted(steps.keys() - work):
        raise ValueError(f"there is no step {', '.join(unknown)} {of}")
    for name, step in steps.items():
        if not isinstance(step, SplitStep) and not registry.is_async(step):
            raise TypeError(f"step {name!r} {of} must be `async def step(context)` or a SplitStep")


log = logging.getLogger(__name__)


class DefinitionPublisher:
    """Publishes the definitions of a worker's workflows for the gateways."""

    def __init__(self, client: Redis, workflows: Workflows, keys: WorkflowKeys) -> None:
        self._client = client
        self._workflows = workflows
        self._keys = keys

    async def publish(self) -> None:
        """Publish at start-up; the last worker wins. Jobs keep the definition they began with."""
        definitions = self._encoded_definitions()
        if not definitions:
            return
        key = self._keys.definitions
        command: Any = self._client.hmget(key, list(definitions))
        known = await read_reply(command) or [None] * len(definitions)
        for (name, declared), other in zip(definitions.items(), known):
            if other is not None and other != declared:
                log.warning(
                    "workflow %s: definition differs from the published one; new jobs use the one "
                    "of this worker. Give changed workflows a new name if older workers still run",
                    name,
                )
        pipe = self._client.pipeline()
        pipe.hset(key, mapping=dict(definitions))
        pipe.expire(key, TTL_MAX_S)
        await read_reply(pipe.execute())

    async def refresh(self) -> None:
        """Periodically add missing definitions, without changing existing ones."""
        key = self._keys.definitions
        pipe = self._client.pipeline()
        for name, declared in self._encoded_definitions().items():
            pipe.hsetnx(key, name, declared)  # type: ignore[arg-type]
        pipe.expire(key, TTL_MAX_S)
        await read_reply(pipe.execute())

    def _encoded_definitions(self) -> dict[str, bytes]:
        return {each.definition.name: each.definition.to_json() for each in self._workflows}
