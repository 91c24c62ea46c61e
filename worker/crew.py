"""A worker's parts and how they know each other; `worker.main` gives them life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis
from redis.asyncio import Redis

from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.promoter import Promoter
from common.queue import QueueStore
from common.rooms import Rooms
from common.store import JobStore, WorkerIdentity
from common.task_limits import TaskLimit
from common.wire import Commander
from worker.admission import Admission
from worker.control import Control
from worker.deferred import Deferred
from worker.executor import Executor
from worker.intake import Intake
from worker.janitor import Janitor
from worker.lease import LeaseKeeper
from worker.limits import TaskLimits
from worker.reader import Reader
from worker.recovery import Recovery
from worker.registry import Registry
from worker.slots import Slots
from worker.tally import Tally
from worker.terms import WorkerTerms
from worker.waiting import Waiting


@dataclass(frozen=True)
class Lines:
    """A worker's connections, each with one purpose."""

    #: Single reads.
    client: Redis
    #: Scripts, and claims of other workers' messages.
    writing: Commander
    #: Blocking reads of the queue.
    reading: Commander
    #: Renewals, from a thread.
    renewing: redis.Redis


@dataclass(frozen=True)
class Capacity:
    """How much a worker takes on."""

    max_inflight: int = 16
    count: int = 16
    block_ms: int = 1000
    task_limits: Sequence[TaskLimit] = ()
    task_limits_global: Sequence[TaskLimit] = ()


class Crew:
    """Everybody who works on jobs in this process."""

    def __init__(
        self,
        lines: Lines,
        keys: JobKeys,
        worker: WorkerIdentity,
        registry: Registry,
        capacity: Capacity,
        terms: WorkerTerms,
    ) -> None:
        self.lines = lines
        self.worker = worker
        self.registry = registry
        self.max_inflight = capacity.max_inflight
        self.tally = Tally()
        self.coalescer = Coalescer(lines.writing, keys)
        self.store = JobStore(lines.client, keys, self.coalescer)
        self.queue = QueueStore(lines.client, keys, self.coalescer)
        self.leases = LeaseKeeper(lines.renewing, keys, worker)
        self.slots = Slots(capacity.max_inflight)
        self.deferred = Deferred(lines.writing, keys.queue, worker, self.slots)
        self.limits = TaskLimits(capacity.task_limits, capacity.task_limits_global, keys)
        self.limits.running = self._running
        self.executor = Executor(
            self.store,
            registry,
            self.leases,
            worker,
            self.slots,
            terms,
            self.deferred.add,
            self.limits,
            self.tally,
        )
        self.intake = Intake(
            self.store, worker, self.limits, self.deferred.add, registry.most_attempts, self.tally
        )
        rooms = Rooms(lines.writing, keys.queue, worker.group, self.coalescer)
        self.waiting = Waiting(
            rooms,
            lines.writing,
            keys.queue,
            worker,
            self.slots,
            self.limits,
            self.intake,
            registry,
        )
        self.intake.wait = self.waiting.put
        self.admission = Admission(
            self.slots, self.limits, self.intake, self.executor, self.deferred, self.waiting
        )
        self.reader = Reader(
            lines.reading,
            keys.queue,
            worker,
            self.slots,
            self.admission,
            capacity.count,
            capacity.block_ms,
            self.tally,
        )
        self.recovery = Recovery(
            lines.writing, keys.queue, worker, self.slots, self.admission, self.deferred, self.tally
        )
        self.control = Control(keys.control, self.executor.cancel, self.leases.wake)
        self.janitor = Janitor(self.queue, worker.group)
        self.promoter = Promoter(self.queue)

    def _running(self) -> Iterator[tuple[str, str]]:
        """Messages whose jobs run here, and their tasks."""
        return ((run.lease.message_id, run.attempt.task) for run in self.executor.running)
