"""The workflow service of a worker: runs steps, reconciles and publishes definitions."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from sluice.common.contracts.workflow.statuses import STEP_TOOL, UNDO_TOOL
from sluice.common.errors import SluiceError
from sluice.common.features.workflows.effects import EffectStore
from sluice.common.features.workflows.reader import WorkflowReader
from sluice.common.features.workflows.records import WorkflowJob
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.outcome import Outcome
from sluice.worker.execution.process_pool.pool import ProcessPool
from sluice.worker.features.rag.service import RagService
from sluice.worker.features.workflows.arguments import CoreJobIds
from sluice.worker.features.workflows.context import StepDependencies
from sluice.worker.features.workflows.job_failure import StepFailureReporter
from sluice.worker.features.workflows.reconciler import WorkflowReconciler
from sluice.worker.features.workflows.registry import DefinitionPublisher, Workflows
from sluice.worker.features.workflows.runner import StepRunner, UndoRunner
from sluice.worker.registry import Registry, Service, WorkerServices

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

log = logging.getLogger(__name__)

#: Random extra delay, as a fraction of the interval, so that workers do not run in step.
JITTER: Final = 0.2
_EXPECTED_ERRORS: Final = (RedisError, SluiceError, *TRANSIENT_ERRORS)


class WorkflowService(Service):
    """Runs steps and undo operations, repairs stranded steps and publishes definitions."""

    def __init__(
        self, workflows: Workflows, every_s: float, rag_service: RagService | None = None
    ) -> None:
        self._workflows = workflows
        self._rag_service = rag_service
        self._every_s = every_s
        self.pool = ProcessPool()

    async def start(self, services: WorkerServices) -> None:
        """Connect to the worker's services.

        If Redis is unavailable, publishing is retried later.
        """
        ids, workflows = CoreJobIds(services.partitions), services.workflows
        self._reader = WorkflowReader(services.redis, workflows.keys)
        self.runner = StepRunner(
            self._workflows,
            StepDependencies(workflows, self._reader, self.pool, ids),
            services.redis,
            services.worker.default_ttl_s,
        )
        self.undo_runner = UndoRunner(
            workflows, EffectStore(services.redis, workflows), self._rag_service
        )
        self.failure_reporter = StepFailureReporter(workflows)
        self.reconciler = WorkflowReconciler(
            *(services.redis, services.keys, workflows, self, ids),
            services.worker,
            self._every_s,
        )
        self.definitions = DefinitionPublisher(services.redis, self._workflows, workflows.keys)
        await _run_safely(self.definitions.publish)

    async def run(self) -> None:
        """Run maintenance periodically, until canceled."""
        while True:
            await asyncio.sleep(self._every_s * random.uniform(1.0, 1.0 + JITTER))
            await self.run_once()

    async def run_once(self) -> None:
        """One round of maintenance; failures are left to the next round."""
        await _run_safely(self.runner.drop_superseded)
        await _run_safely(self.reconciler.run_once)
        await _run_safely(self.definitions.refresh)

    async def close(self) -> None:
        await self.pool.close()

    async def snapshot(self, job_id: str) -> WorkflowJob | None:
        return await self._reader.snapshot(job_id)

    # -- internal tools --------------------------------------------------------------------

    async def step(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        return await self.runner.step(context, args)

    async def undo(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        return await self.undo_runner.undo(context, args)

    async def ended(
        self, context: JobContext, args: Mapping[str, Any], outcome: Outcome, error: bytes
    ) -> None:
        """Called when the core job of a step has ended in error or was canceled."""
        await self.failure_reporter.ended(context, args, outcome, error)


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    """Run the steps of all registered workflows."""
    add_service(registry, settings.workflow_reconcile_s, shared.rag)


def add_service(registry: Registry, every_s: float, rag_service: RagService | None = None) -> None:
    """Run the steps of the registry's workflows; `rag_service` removes vectors after an undo."""
    service = WorkflowService(registry.workflows, every_s, rag_service)
    registry.add_service(service)
    registry.add_internal(STEP_TOOL, service.step, service.ended)
    registry.add_internal(UNDO_TOOL, service.undo)


async def _run_safely(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except _EXPECTED_ERRORS as error:
        log.warning("workflow maintenance failed, retrying next round: %s", error)
    except Exception:
        log.exception("workflow maintenance failed, retrying next round")
