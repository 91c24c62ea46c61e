"""A worker's parts and how they know each other; `worker.main` gives them life."""

from __future__ import annotations

from dataclasses import dataclass, field

import redis
from redis.asyncio import Redis

from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.promoter import Promoter
from common.queue import QueueStore
from common.store import JobStore, WorkerIdentity
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

#: So many messages may wait for a place of their task, per place of the worker.
PARKED_PER_SLOT = 4


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
    task_limits: dict[str, int] = field(default_factory=dict)
    task_limits_global: dict[str, int] = field(default_factory=dict)


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
        self.limits = TaskLimits(
            capacity.task_limits,
            capacity.task_limits_global,
            keys,
            self.deferred.add,
            PARKED_PER_SLOT * capacity.max_inflight,
        )
        self.deferred.on_vanished = self.limits.vanished
        self.executor = Executor(
            self.store,
            registry,
            self.leases,
            worker,
            self.slots,
            terms,
            self.deferred.add,
            self.limits.leave if self.limits else None,
            self.tally,
        )
        self.intake = Intake(
            self.store, worker, self.limits, self.deferred.add, registry.most_attempts, self.tally
        )
        self.admission = Admission(
            self.slots, self.limits, self.intake, self.executor, self.deferred
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
