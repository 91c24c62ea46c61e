"""Repairs what nobody else will: steps whose core job ended without them, reviews that are over."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis.asyncio import Redis

from common import codec
from common.contracts.jobs import TERMINAL, JobField, JobKeys, Status
from common.contracts.workflow.statuses import WorkflowError
from common.errors import CorruptKey
from common.features.workflows.effects import EffectStore
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import RunningStepJob, WorkflowAnswer
from common.jobs.limits import AdmissionLimits
from common.jobs.store import WorkerIdentity, read_reply
from common.observability import logs
from worker.features.workflows.arguments import CoreJobIds
from worker.features.workflows.errors import error_entry
from worker.features.workflows.job_failure import (
    STEP_CANCELLED,
    StepFailureReporter,
    parse_job_error,
)

if TYPE_CHECKING:
    from common.features.workflows.records import WorkflowJob

log = logging.getLogger(__name__)

#: Of all workers one does it, so often. Whoever comes a little early next time must not be refused.
LOCK_TTL_SHARE: Final = 0.9
#: What runs on its own goes on however long the queue is: it was let in long ago.
NO_LIMIT: Final = 10**12
#: Core jobs looked at in one go.
BATCH_SIZE: Final = 500
#: How long one repair may take: whoever hangs must not hold up the others.
REPAIR_TIMEOUT_S: Final = 10.0

_STEP_LOST: Final = error_entry(
    WorkflowError.STEP_LOST.value,
    "the step's core job ended without it, or is gone: Redis lost it, it waited longer than it is "
    "kept (DEFAULT_TTL_S), or a worker that does no workflows took it. See that every worker runs "
    "`python -m worker`, then execute the step again",
)


class SnapshotReader(Protocol):
    """Whoever can tell how a workflow job stands."""

    async def snapshot(self, job_id: str) -> WorkflowJob | None:
        """The job and all its steps; None where there is none."""


class WorkflowReconciler:
    """Looks for stranded steps; every worker has one, one of them at a time does it."""

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
        """Repair what needs it, if it is our turn; how much that was."""
        if not await self._acquire_lock():
            return 0
        return await self.repair_steps() + await self.expire_reviews() + await self.revert_effects()

    async def _acquire_lock(self) -> bool:
        # It is not given back: nobody else need look again so soon. Should a round take longer than
        # a turn, two may work at once, which does no harm: each repair happens once.
        key = self._store.keys.reconciler
        return bool(await read_reply(self._client.set(key, self._token, nx=True, px=self._lock_ms)))

    async def repair_steps(self) -> int:
        """Fail the steps whose core job has ended, or is gone, while they seem to run."""
        suspicious = {
            stranded: error
            for stranded, error in await self._find_stranded(await self._store.running())
            if error is not None
        }
        if not suspicious:
            return 0
        # Whoever ended the core job has told the step before, or is about to: look again.
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
        """What became of the core jobs of steps; None for those that have not ended."""
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
        """End the reviews that nobody finished in time."""
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
        """Take back what steps did beyond their workflows and did not bring to its end."""
        effects = EffectStore(self._client, self._store)
        taken = 0
        for job_id in await effects.jobs_with_effects():
            taken += await _repair_safely(_count_results(effects.revert(job_id)), job_id)
        return taken


async def _count_results(found: Awaitable[Sequence[str]]) -> int:
    return len(await found)


async def _repair_safely(repair: Awaitable[int], job_id: str) -> int:
    """How much was repaired; what is wrong with one job is no reason to leave the others."""
    try:
        return await asyncio.wait_for(repair, REPAIR_TIMEOUT_S)
    except CorruptKey as error:
        fault = str(error)
    except asyncio.TimeoutError:
        fault = f"it took longer than {REPAIR_TIMEOUT_S:.0f} s; the next round tries again"
    log.warning(
        "workflow job %s cannot be repaired: %s", job_id, fault, extra=logs.job_extra(job_id)
    )
    return 0


def _failure_in(reply: Any) -> dict[str, str] | None:
    """Why a step cannot go on; None where its core job has not ended."""
    if isinstance(reply, Exception):  # that key is something else now
        return _STEP_LOST
    status, error = (codec.decode_text(raw or b"") for raw in reply)
    if status not in TERMINAL and status:
        return None
    if status == Status.CANCELED.value:
        return STEP_CANCELLED
    return parse_job_error(error.encode()) if status == Status.ERROR.value else _STEP_LOST
