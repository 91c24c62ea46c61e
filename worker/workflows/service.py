"""Everything of workflows in a worker: started with it, kept going, closed with it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.contracts.workflow import STEP_TOOL, UNDO_TOOL
from common.errors import SluiceError
from worker.compute.pool import Pool
from worker.context import JobContext
from worker.outcome import Outcome
from worker.rag.library import Library
from worker.registry import Registry
from worker.services import House, Service
from worker.workflows.definitions import Definitions
from worker.workflows.failing import Failing
from worker.workflows.ids import CoreIds
from worker.workflows.reconciler import Reconciler
from worker.workflows.registry import Workflows

if TYPE_CHECKING:
    from common.workflow.reader import WorkflowReader
    from common.workflow.records import WorkflowJob
    from worker.workflows.runner import StepRunner
    from worker.workflows.undoing import Undoing

log = logging.getLogger(__name__)

#: Not all workers come at the same time: each waits up to a fifth longer.
SPREAD: Final = 0.2
_RUNNER: Final = "runner"
_TROUBLE: Final = (RedisError, SluiceError, *TRANSIENT_ERRORS)


class WorkflowService(Service):
    """Runs steps and undoings, and looks after them."""

    def __init__(
        self, workflows: Workflows, every_s: float, library: Library | None = None
    ) -> None:
        self._workflows = workflows
        self._library = library
        self._every_s = every_s
        self.pool = Pool()

    async def start(self, house: House) -> None:
        """Know the house. Redis may be away: what is to be published then waits."""
        ids = CoreIds(house.partitions)
        self._house, self._ids = house, ids
        self.failing = Failing(house.workflows)
        self.reconciler = Reconciler(
            *(house.redis, house.keys, house.workflows, self, ids),
            house.worker,
            self._every_s,
        )
        self.definitions = Definitions(house.redis, self._workflows, house.workflows.keys)
        await _tried(self.definitions.publish)

    async def run(self) -> None:
        """Look after everything every so often, until canceled."""
        while True:
            await asyncio.sleep(self._every_s * random.uniform(1.0, 1.0 + SPREAD))
            await self.run_once()

    async def run_once(self) -> None:
        """One look; trouble is left to the next one."""
        if _RUNNER in vars(self):  # else no step has begun here
            await _tried(self.runner.drop_superseded)
        await _tried(self.reconciler.run_once)
        await _tried(self.definitions.refresh)

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()

    # -- imported by who first needs it ----------------------------------------------------

    async def snapshot(self, job_id: str) -> WorkflowJob | None:
        """How a workflow job stands."""
        return await self._reader.snapshot(job_id)

    @cached_property
    def _reader(self) -> WorkflowReader:
        from common.workflow.reader import WorkflowReader

        return WorkflowReader(self._house.redis, self._house.workflows.keys)

    @cached_property
    def undoing(self) -> Undoing:
        """Who takes back what steps did beyond their workflows."""
        from common.workflow.effects import EffectStore
        from worker.workflows.undoing import Undoing

        effects = EffectStore(self._house.redis, self._house.workflows)
        return Undoing(self._house.workflows, effects, self._library)

    @cached_property
    def runner(self) -> StepRunner:
        """Who does the steps."""
        from worker.workflows.context import Means
        from worker.workflows.runner import StepRunner

        house = self._house
        means = Means(house.workflows, self._reader, self.pool, self._ids)
        return StepRunner(self._workflows, means, house.redis, house.worker.default_ttl_s)

    # -- internal tools --------------------------------------------------------------------

    async def step(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        """The tool `workflow.step`."""
        return await self.runner.step(context, args)

    async def undo(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        """The tool `workflow.undo`."""
        return await self.undoing.undo(context, args)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """The core job of a step ended badly."""
        await self.failing.ended(context, args, outcome, error)


def register(registry: Registry, every_s: float, library: Library | None = None) -> None:
    """Let `registry` do the steps of its workflows; `library` is told of documents that go."""
    service = WorkflowService(registry.workflows, every_s, library)
    registry.add_service(service)
    registry.add_internal(STEP_TOOL, service.step, service.ended)
    registry.add_internal(UNDO_TOOL, service.undo)


async def _tried(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except _TROUBLE as error:
        log.warning("looking after workflows is left to the next round: %s", error)
    except Exception:
        log.exception("looking after workflows is left to the next round")
