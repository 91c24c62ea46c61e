"""A worker's parts and how they know each other; `worker.main` gives them life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis
from redis.asyncio import Redis

from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.contracts.pause import paused_key
from common.images.scripts import IMAGES
from common.images.store import ImageStore
from common.promoter import Promoter
from common.queue import QueueStore
from common.rooms import Rooms
from common.store import JobStore, WorkerIdentity
from common.task_limits import TaskLimit
from common.wire import Commander
from common.workflow.scripts import WORKFLOW
from common.workflow.store import WorkflowStore
from common.workflow.webhook_store import WebhookStore
from worker.admission import Admission
from worker.control import Control
from worker.deferred import Deferred
from worker.executor import Executor
from worker.intake import Intake
from worker.janitor import Janitor
from worker.lease import LeaseKeeper
from worker.limits import TaskLimits
from worker.places import LocalPlaces
from worker.reader import Reader
from worker.recovery import Recovery
from worker.registry import Registry
from worker.riding import Riding
from worker.slots import Slots
from worker.tally import Tally
from worker.terms import WorkerTerms
from worker.turns import Turns
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

    @property
    def in_loop(self) -> tuple[Commander | Redis, ...]:
        """Those that the event loop has opened, and closes."""
        return self.writing, self.reading, self.client


@dataclass(frozen=True)
class Capacity:
    """How much a worker takes on."""

    max_inflight: int = 16
    count: int = 16
    block_ms: int = 1000
    task_limits: Sequence[TaskLimit] = ()
    task_limits_global: Sequence[TaskLimit] = ()


class Commons:
    """What all queues of a worker share: its places and its numbers."""

    def __init__(self, capacity: Capacity, queues: int = 1) -> None:
        self.capacity = capacity
        self.tally = Tally()
        self.slots = Slots(capacity.max_inflight)
        self.places = LocalPlaces(capacity.task_limits)
        #: Who reads next; a single queue's reader need not ask.
        self.turns = Turns(self.slots) if queues > 1 else None


class Crew:
    """Everybody who works on the jobs of one queue in this process."""

    def __init__(
        self,
        lines: Lines,
        keys: JobKeys,
        worker: WorkerIdentity,
        registry: Registry,
        commons: Commons,
        terms: WorkerTerms,
        weight: int = 1,
        lanes: Sequence[str] = (),
    ) -> None:
        capacity, turns = commons.capacity, commons.turns
        self.lines = lines
        self.keys = keys
        self.worker = worker
        self.registry = registry
        self.max_inflight = capacity.max_inflight
        self.tally = commons.tally
        self.coalescer = Coalescer(lines.writing, keys)
        self.store = JobStore(lines.client, keys, self.coalescer)
        self.workflow_coalescer = Coalescer(lines.writing, keys, script=WORKFLOW)
        self.workflows = WorkflowStore(lines.client, keys, self.workflow_coalescer)
        self.webhooks = WebhookStore(lines.client, self.workflow_coalescer, self.workflows.keys)
        self.image_coalescer = Coalescer(lines.writing, keys, script=IMAGES)
        self.images = ImageStore(lines.client, keys, self.image_coalescer)
        # Whoever promotes jobs says which lanes there are; the script puts them there.
        self.queue = QueueStore(
            lines.client, keys, self.coalescer, dict.fromkeys(lanes, self.coalescer)
        )
        self.leases = LeaseKeeper(lines.renewing, keys, worker)
        self.slots = commons.slots
        self.deferred = Deferred(lines.writing, keys.stream, worker, self.slots)
        self.limits = TaskLimits(commons.places, capacity.task_limits_global, keys)
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
        rooms = Rooms(lines.writing, keys.stream, worker.group, self.coalescer)
        self.waiting = Waiting(
            rooms,
            lines.writing,
            keys.stream,
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
        turn = turns.join(weight) if turns else None
        self.riding = Riding(
            self.coalescer,
            self.slots,
            self.limits,
            self.intake,
            self.admission,
            capacity.count,
            registry.own_attempts,
            turn,
        )
        self.reader = Reader(
            lines.reading,
            keys.stream,
            worker,
            self.slots,
            self.admission,
            capacity.count,
            capacity.block_ms,
            self.tally,
            turn,
            riding=self.riding,
        )
        self.recovery = Recovery(
            lines.writing,
            keys.stream,
            worker,
            self.slots,
            self.admission,
            self.deferred,
            self.tally,
            turns.join(weight, reads=False) if turns else None,
        )
        self.control = Control(
            keys.control, self.executor.cancel, self.leases.wake, paused_key(keys.queue)
        )
        self.janitor = Janitor(self.queue, worker.group)
        #: All lanes have one schedule.
        self.promoter = None if keys.lane else Promoter(self.queue)

    async def close(self) -> None:
        """Give up on what is under way; the lines are their owner's to close."""
        self.leases.stop()
        await self.waiting.close()
        await self.coalescer.close()
        await self.workflow_coalescer.close()
        await self.image_coalescer.close()

    def _running(self) -> Iterator[tuple[str, str]]:
        """Messages whose jobs run here, and their kinds."""
        return ((run.lease.message_id, run.attempt.kind) for run in self.executor.running)
