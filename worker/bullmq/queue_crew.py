"""Everybody who works on one queue of BullMQ, and how they know each other."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from common.bullmq.names import names_in
from common.connection import REPLY_TIMEOUT_S, sync_client
from common.contracts.bullmq import BullKeys
from common.errors import StoreUnavailable
from common.store import WorkerIdentity
from common.wire import Wire
from worker.bullmq.handlers import BullHandlers
from worker.bullmq.job import TakenJob
from worker.bullmq.line import ScriptLine
from worker.bullmq.locks import LockKeeper
from worker.bullmq.reports import BullReports
from worker.bullmq.schedules import Schedules
from worker.bullmq.scripts import QueueScripts
from worker.bullmq.stalls import StallChecker
from worker.bullmq.taker import BullSlots, Taker
from worker.control import Control
from worker.executor import Executor
from worker.registry import Registry
from worker.tally import Tally
from worker.terms import WorkerTerms

if TYPE_CHECKING:
    from common.settings import WorkerSettings

log = logging.getLogger(__name__)


class QueueCrew:
    """Takes jobs from a queue and runs them, until it is told to stop."""

    def __init__(
        self,
        url: str,
        queue: str,
        settings: WorkerSettings,
        registry: Registry,
        terms: WorkerTerms,
    ) -> None:
        self.tally = Tally()
        self.keys = BullKeys(queue, settings.bullmq_prefix)
        lock_s = settings.bullmq_lock_ms / 1000
        patience_s = min(REPLY_TIMEOUT_S, max(lock_s / 2, 1.0))
        self._writing = Wire(url, reply_timeout_s=patience_s)
        self._blocking = Wire(
            url,
            block_s=settings.bullmq_drain_delay_s,
            reply_timeout_s=patience_s,
            client_name=client_name(self.keys, settings.bullmq_worker_name),
        )
        line = ScriptLine(self._writing)
        scripts = QueueScripts(self.keys, settings)
        renewing = sync_client(url, reply_timeout_s=min(REPLY_TIMEOUT_S, lock_s / 3))
        self.locks = LockKeeper(
            renewing, scripts, settings.bullmq_lock_ms, settings.bullmq_lock_renew_ms
        )
        self.slots = BullSlots(settings.bullmq_concurrency)
        self.reports = BullReports(line, scripts, settings, self.locks.good_until)
        self.handlers = BullHandlers(
            registry, names_in(settings.bullmq_name_map), self.reports.jobs.get
        )
        worker = WorkerIdentity(
            self.keys.key(""),
            settings.bullmq_worker_name,
            settings.bullmq_lock_ms,
            settings.default_ttl_s,
        )
        self.executor = Executor(
            self.reports,
            self.handlers,
            self.locks,
            worker,
            self.slots,
            terms,
            lambda message_id, delay_s: None,  # the queue itself knows when it is due again
            tally=self.tally,
            on_fault=self.reports.note_fault,
        )
        self.taker = Taker(
            line,
            self._blocking,
            scripts,
            self.slots,
            self._start,
            self.reports.jobs.__contains__,
            settings.bullmq_drain_delay_s,
        )
        self.reports.may_fetch = self.taker.may_fetch
        self.reports.fetched = self.taker.took
        self.reports.unsure = self.taker.unsure
        self.schedules = Schedules(line, scripts, settings.bullmq_lock_ms)
        self.stalls = StallChecker(line, scripts, settings.bullmq_stalled_interval_ms)
        self.control = Control(self.keys.control, self.executor.cancel, self.locks.wake)
        self._listening = Wire(url, on_message=self.control.heard)
        self._taking: asyncio.Task[None] | None = None
        self._caretakers: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        """Begin to take jobs."""
        self.locks.start()
        self._taking = asyncio.create_task(self.taker.run())
        work: tuple[Coroutine[Any, Any, None], ...]
        work = (self.stalls.run(), self.control.run(self._listening))
        self._caretakers = [asyncio.create_task(part) for part in work]

    def _start(self, job: TakenJob) -> None:
        """Run a job that was locked just now; a worker that stops gives it back unseen."""
        self.reports.jobs[job.id] = job
        if job.scheduler:
            self.schedules.add(job)
        self.slots.start(self._hand_back(job) if self.taker.stopping else self._run(job))

    async def _hand_back(self, job: TakenJob) -> None:
        try:
            await self.reports.hand_back(job)
        except StoreUnavailable as error:
            log.warning("job %s stays locked for a while: %s", job.id, error)
        finally:
            self._forget(job)

    async def _run(self, job: TakenJob) -> None:
        try:
            await self.executor.run(job.attempt)
        finally:
            self._forget(job)

    def _forget(self, job: TakenJob) -> None:
        if self.reports.jobs.get(job.id) is job:
            del self.reports.jobs[job.id]

    async def waiting(self) -> int:
        """How many jobs could be taken, priority or not."""
        wait, prioritized = self.keys.key("wait"), self.keys.key("prioritized")
        plain = await self._writing.execute_command("LLEN", wait)
        return int(plain + await self._writing.execute_command("ZCARD", prioritized))

    async def drain(self, grace_s: float, insisted: asyncio.Event) -> None:
        """Take no more, let running jobs finish, hand the rest back. Locks go on meanwhile."""
        await self.taker.stop()
        if self._taking is not None:
            await asyncio.wait({self._taking})
        idle = asyncio.create_task(self.slots.wait_idle(grace_s))
        told_again = asyncio.create_task(insisted.wait())
        await asyncio.wait({idle, told_again}, return_when=asyncio.FIRST_COMPLETED)
        told_again.cancel()
        if not idle.done() or not idle.result():
            idle.cancel()
            log.warning(
                "%d jobs of %s did not finish in time and are handed back",
                self.slots.busy,
                self.keys.queue,
            )
            self.executor.abandon()
            await self.slots.cancel()
            await self.executor.release_rest()

    async def close(self) -> None:
        """Nothing runs any more."""
        await self.schedules.settle()
        for task in self._caretakers:
            task.cancel()
        await asyncio.gather(*self._caretakers, return_exceptions=True)
        self.locks.stop()
        for wire in (self._writing, self._blocking, self._listening):
            await wire.aclose()


def client_name(keys: BullKeys, worker_name: str) -> str:
    """How Node's `queue.getWorkers()` knows the connections of workers."""
    queue = base64.b64encode(keys.queue.encode()).decode()
    return f"{keys.prefix}:{queue}:w:{worker_name}"
