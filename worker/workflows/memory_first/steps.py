"""The steps of the workflow, imported when the first of them is due.

They bring a lot with them: words of several languages, and who compares spellings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from common.workflow.memory_first import (
    ANALYTICS,
    APPLY,
    INDEX_EXTRACT,
    PROPOSALS,
    SOURCES,
    SUMMARIZE,
)
from worker.services import House, Service
from worker.threads import call_in_thread
from worker.workflows.splitting import SplitStep

if TYPE_CHECKING:
    from worker.model.rounds import Model
    from worker.rag.library import Library
    from worker.workflows.context import StepContext
    from worker.workflows.output import StepOutput
    from worker.workflows.registry import Step, StepFunction

_PLAIN = (SOURCES, SUMMARIZE, PROPOSALS, APPLY, ANALYTICS)


class _Imported(NamedTuple):
    steps: Mapping[str, Step]
    #: Those of them that want to know the house.
    services: Sequence[Service]


class MemoryFirstSteps(Service):
    """All of them, once they are there; what stands in for them until then."""

    def __init__(self, sources_root: str, model: Model, library: Library) -> None:
        self._sources_root = sources_root
        self._model = model
        self._library = library
        self._house: House | None = None
        self._steps: Mapping[str, Step] | None = None

    async def start(self, house: House) -> None:
        """Know the house, for the steps that will want to."""
        self._house = house

    def by_name(self) -> dict[str, Step]:
        """What does each step, for `Workflows.add`."""
        plain = {name: partial(self._run, name) for name in _PLAIN}
        return {**plain, INDEX_EXTRACT: _LateSplit(self, INDEX_EXTRACT)}

    async def _run(self, name: str, context: StepContext) -> StepOutput:
        step = cast("StepFunction", await self.step(name))
        return await step(context)

    async def step(self, name: str) -> Step:
        """The step itself."""
        if self._steps is None:
            steps, services = cast(_Imported, await call_in_thread(self._import))
            for service in services:
                assert self._house is not None
                await service.start(self._house)
            self._steps = steps
        return self._steps[name]

    def _import(self) -> _Imported:
        from worker.workflows.memory_first.analytics import AnalyticsStep
        from worker.workflows.memory_first.applying import ApplyStep
        from worker.workflows.memory_first.extract import ExtractStep
        from worker.workflows.memory_first.proposals import ProposalsStep
        from worker.workflows.memory_first.sources import SourcesStep
        from worker.workflows.memory_first.summarize import SummarizeStep

        proposals, apply = ProposalsStep(), ApplyStep(self._library)
        steps: dict[str, Step] = {
            SOURCES: SourcesStep(self._sources_root),
            INDEX_EXTRACT: ExtractStep(),
            SUMMARIZE: SummarizeStep(self._model),
            PROPOSALS: proposals,
            APPLY: apply,
            ANALYTICS: AnalyticsStep(self._library),
        }
        return _Imported(steps, (proposals, apply))


class _LateSplit(SplitStep):
    """Stands in for a step that is done in parts, of which none may fail."""

    def __init__(self, steps: MemoryFirstSteps, name: str) -> None:
        self._steps = steps
        self._name = name

    async def split(self, context: StepContext) -> Sequence[Any]:
        """See `SplitStep`."""
        return await (await self._step()).split(context)

    async def run_part(self, context: StepContext, part: Any) -> Any:
        """See `SplitStep`."""
        return await (await self._step()).run_part(context, part)

    async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
        """See `SplitStep`."""
        return await (await self._step()).join(context, results)

    async def _step(self) -> SplitStep:
        return cast(SplitStep, await self._steps.step(self._name))
