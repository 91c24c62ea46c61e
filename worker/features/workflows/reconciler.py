"""Repairs workflows: fails steps whose core job is gone, ends expired reviews, reverts effects."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.jobs import TERMINAL, JobField, JobKeys, Status
from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.errors import CorruptKey
from sluice.common.features.workflows.effects import EffectStore
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import RunningStepJob, WorkflowAnswer
from sluice.common.jobs.limits import AdmissionLimits
from sluice.common.jobs.store import WorkerIdentity, read_reply
from sluice.common.observability import logs
from sluice.worker.features.workflows.arguments import CoreJobIds
from sluice.worker.features.workflows.errors import error_entry
from sluice.worker.features.workflows.job_failure import (
    STEP_CANCELLED,
    StepFailureReporter,
    parse_job_error,
)

if TYPE_CHECKING:
    from sluice.common.features.workflows.records import WorkflowJob

log = logging.getLogger(__name__)

#: Validity of the lock, as a fraction of the interval, so that the next round is not refused if it
#: comes slightly early.
LOCK_TTL_SHARE: Final = 0.9
#: Steps started automatically are not subject to the limit of the queue: their job was admitted.
NO_LIMIT: Final = 10**12
#: Core jobs checked per batch.
BATCH_SIZE: Final = 500
#: Time limit of one repair, so that one that hangs does not delay the others.
REPAIR_TIMEOUT_S: Final = 10.0

_STEP_LOST: Final = error_entry(
    WorkflowError.STEP_LOST.value,
    "the step's core job ended without a result or is gone: Redis lost it, it expired while "
    "waiting (DEFAULT_TTL_S), or a worker without workflow support took it. Run every worker with "
    "`python -m sluice.worker`, then execute the step again",
)


class SnapshotReader(Protocol):
    """Reader of the state of a workflow job."""

    async def snapshot(self, job_id: str) -> WorkflowJob | None:
        """The job and all its steps, or None."""


class WorkflowReconciler:
    """Repairs stranded steps. Every worker has one; a lock lets one of them run at a time."""

    def __init__(
        self,
        client: Redis,
        jobs: JobKeys,
        store: WorkflowStore,
        reader: SnapshotReader,
        ids: CoreJobIds,
        worker: WorkerIdentity,
        every_s: float,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._store = store
        self._reader = reader
        self._ids = ids
        self._failure_reporter = StepFailureReporter(store)
        self._admission = AdmissionLimits(worker.group, NO_LIMIT, worker.default_ttl_s)
        self._lock_ms = max(1, round(every_s * LOCK_TTL_SHARE * 1000))
        self._token = uuid.uuid4().hex

    async def run_once(self) -> int:
        """Run all repairs if this worker gets the lock; returns their number."""
        if not await self._acquire_lock():
            return 0
        return await self.repair_steps() + await self.expire_reviews() + await self.revert_effects()

    async def _acquire_lock(self) -> bool:
        # The lock is not released but expires. If a round takes longer, two workers may run at
        # once; that is harmless, because each repair is applied once.
        key = self._store.keys.reconciler
        return bool(await read_reply(self._client.set(key, self._token, nx=True, px=self._lock_ms)))

    async def repair_steps(self) -> int:
        """Fail the steps that seem to run although their core job has ended or is gone."""
        suspicious = {
            stranded: error
            for stranded, error in await self._find_stranded(await self._store.running())
            if error is not None
        }
        if not suspicious:
            return 0
        # The worker that ended the core job may just have ended the step, too: read again.
        repaired = 0
        for stranded in await self._store.running():
            error = suspicious.get(stranded)
            if error is not None:
                failing = self._failure_reporter.fail(
                    stranded.running, error, error is STEP_CANCELLED
                )
                repaired += await _repair_safely(failing, stranded.running.job_id)
        return repaired

    async def _find_stranded(
        self, running: Sequence[RunningStepJob]
    ) -> list[tuple[RunningStepJob, dict[str, str] | None]]:
        """The failure of each step's core job; None if the job has not ended."""
        found: list[tuple[RunningStepJob, dict[str, str] | None]] = []
        for start in range(0, len(running), BATCH_SIZE):
            some = running[start : start + BATCH_SIZE]
            pipe = self._client.pipeline(transaction=False)
            for stranded in some:
                key = self._jobs.job(stranded.core_job)
                pipe.hmget(key, [JobField.STATUS, JobField.ERROR])
            replies = await read_reply(pipe.execute(raise_on_error=False))
            found += [(stranded, _failure_in(reply)) for stranded, reply in zip(some, replies)]
        return found

    async def expire_reviews(self) -> int:
        """End the reviews whose time is over."""
        return sum(
            [
                await _repair_safely(self._expire_review(job_id), job_id)
                for job_id in await self._store.expired_reviews()
            ]
        )

    async def _expire_review(self, job_id: str) -> bool:
        try:
            job = await self._reader.snapshot(job_id)
            ids = self._ids.for_tail("" if job is None else job.tail)
            outcome = await self._store.expire_review(job_id, ids, self._admission)
        except CorruptKey:
            await self._store.postpone_review(job_id)
            raise
        return outcome.answer is WorkflowAnswer.OK

    async def revert_effects(self) -> int:
        """Revert effects of failed steps outside of their workflows."""
        effects = EffectStore(self._client, self._store)
        reverted = 0
        for job_id in await effects.jobs_with_effects():
            reverted += await _repair_safely(_count_results(effects.revert(job_id)), job_id)
        return reverted


async def _count_results(found: Awaitable[Sequence[str]]) -> int:
    return len(await found)


async def _repair_safely(repair: Awaitable[int], job_id: str) -> int:
    """Run one repair; returns its count. A failure is logged and does not affect the others."""
    try:
        return await asyncio.wait_for(repair, REPAIR_TIMEOUT_S)
    except CorruptKey as error:
        problem = str(error)
    except asyncio.TimeoutError:
        problem = f"it took longer than {REPAIR_TIMEOUT_S:.0f} s; the next round tries again"
    log.warning("workflow job %s: repair failed: %s", job_id, problem, extra=logs.job_extra(job_id))
    return 0


def _failure_in(reply: Any) -> dict[str, str] | None:
    """Why a step cannot continue; None if its core job has not ended."""
    if isinstance(reply, Exception):  # the key has another type
        return _STEP_LOST
    status, error = (codec.decode_text(raw or b"") for raw in reply)
    if status not in TERMINAL and status:
        return None
    if status == Status.CANCELED.value:
        return STEP_CANCELLED
    return parse_job_error(error.encode()) if status == Status.ERROR.value else _STEP_LOST
