"""What an echo worker says to steps of workflows: an echo of them would do nothing, and seem to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from common.contracts.workflow import STEP_TOOL, UNDO_TOOL, WorkflowError
from worker.context import JobContext
from worker.outcome import Outcome
from worker.registry import Registry
from worker.services import House, Service
from worker.workflows.errors import StepError
from worker.workflows.failing import Failing

_WORDS: Final = (
    "this worker only echoes, and an echo of a step does nothing; run `python -m worker` in its "
    'place (`make run ARGS="--worker real"`), then execute the step again'
)


class Refusing(Service):
    """Fails steps at once, so that whoever waits hears why."""

    async def start(self, house: House) -> None:
        """Know the house."""
        self._failing = Failing(house.workflows)

    async def refuse(self, context: JobContext, args: dict[str, Any]) -> NoReturn:
        """Do nothing, and say so."""
        raise StepError(WorkflowError.STEP_FAILED.value, _WORDS)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Its core job has ended so: let the workflow know."""
        await self._failing.ended(context, args, outcome, error)


def register(registry: Registry) -> None:
    """Let `registry` refuse what only workflows ask for."""
    refusing = Refusing()
    registry.add_service(refusing)
    registry.add_internal(STEP_TOOL, refusing.refuse, refusing.ended)
    registry.add_internal(UNDO_TOOL, refusing.refuse)
