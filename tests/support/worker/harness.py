"""A whole worker inside the test's own process, wired as `sluice.worker.main` does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.limits import TaskLimit
from sluice.common.jobs.options import Backoff, JobOptions
from sluice.common.jobs.store import Lease, WorkerIdentity
from sluice.worker.execution.executor import Outcome
from sluice.worker.execution.outcome import WorkerDefaults
from sluice.worker.handlers import echo
from sluice.worker.monitoring.shutdown import drain
from sluice.worker.queue.claim import ClaimedJob
from sluice.worker.queue.connections import Connections
from sluice.worker.queue.consumers import (
    Capacity,
    QueueConsumer,
    QueueConsumers,
    SharedCapacity,
    build_listeners,
)
from sluice.worker.queue.messages import Message, limit_key_of
from sluice.worker.registry import Registry, WorkerServices
from tests.support.servers import Backend
from tests.support.store.jobs import StoreHarness
from tests.support.waiting import eventually

#: Terminal statuses, and types of terminal events.
ENDS = {b"done", b"error", b"canceled"}


class WorkerLoops:
    """The loops of a worker, which end like those of `sluice.worker.main`."""

    def __init__(self, consumers: QueueConsumers) -> None:
        self.consumers = consumers
        self._reading: asyncio.Task[None] | None = None
        self._takers: list[asyncio.Task[Any]] = []
        self._others: list[asyncio.Task[Any]] = []

    def start_loops(self, read: Any, take: Iterable[Any], others: Iterable[Any]) -> None:
        self._reading = asyncio.create_task(read)
        self._takers = [asyncio.create_task(each) for each in take]
        self._others = [asyncio.create_task(each) for each in others]

    async def stop(self, grace_s: float = 5.0) -> None:
        """Let running jobs finish."""
        if self._reading is not None:
            for taker in self._takers:
                taker.cancel()
            reading, self._reading = self._reading, None
            await drain(self.consumers, reading, grace_s)

    async def end_loops(self, timeout_s: float) -> None:
        with contextlib.suppress(AssertionError):
            await within(timeout_s, self.stop(0.0))
        await cancel(*self._takers, *self._others)


class WorkerHarness(WorkerLoops, StoreHarness):
    """A harness with a worker. `start` lets it read; otherwise tests drive its parts."""

    def __init__(
        self,
        backend: Backend,
        keys: JobKeys,
        worker: WorkerIdentity,
        registry: Registry | None = None,
        *,
        max_inflight: int = 4,
        count: int = 16,
        block_ms: int = 50,
        reading: Any = None,
        task_limits: dict[str, int] | None = None,
        task_limits_global: dict[str, int] | None = None,
        terms: WorkerDefaults | None = None,
    ) -> None:
        StoreHarness.__init__(self, backend, keys, worker)
        if registry is None:
            registry = Registry()
            echo.register(registry)
        capacity = Capacity(
            max_inflight, count, block_ms, limits_of(task_limits), limits_of(task_limits_global)
        )
        terms = terms or quick_terms(worker)
        self.consumer = QueueConsumer(
            connections_to(backend, reading),
            keys,
            worker,
            registry,
            SharedCapacity(capacity),
            terms,
        )
        WorkerLoops.__init__(self, QueueConsumers([self.consumer]))
        self.leases = self.consumer.leases
        self.slots = self.consumer.slots
        self.executor = self.consumer.executor
        self.claimer = self.consumer.claimer
        self.reader = self.consumer.reader
        #: Called when the queue may have been paused or resumed.
        self.on_pause_change: Callable[[], None] = lambda: None
        [self.control] = build_listeners(
            self.consumers,
            lambda keys, on_message: backend.wire(on_message=on_message),
            lambda: self.on_pause_change(),
        )

    def start(self, *, recover: bool = False, listen: bool = True) -> None:
        """Start the reader, the deferred messages, the wait queue and the control listener."""
        consumer = self.consumer
        self.leases.start()
        self.start_loops(
            self.reader.run(),
            [
                consumer.deferred.run(consumer.admission.offer),
                consumer.wait_queue.run(consumer.admission.offer_waiting),
                *([consumer.recovery.run()] if recover else []),
            ],
            [consumer.promoter.run(), *([self.control.run()] if listen else [])],
        )

    async def close(self) -> None:
        await self.end_loops(5)
        await self.consumer.close()
        await super().close()

    @property
    def services(self) -> WorkerServices:
        """The argument of the services' `start`."""
        consumer = self.consumer
        return WorkerServices(
            *(
                self.client,
                consumer.limits,
                consumer.workflows,
                consumer.images,
                self.keys,
                self.worker,
            ),
            consumer.webhooks,
            subscribe=lambda heard: self.backend.wire(on_message=heard),
        )

    async def attempt(self, payload: bytes = b"{}", task: str = "chat", **job: Any) -> ClaimedJob:
        """An attempt that has begun, ready for the executor."""
        lease: Lease = await self.running(payload=payload, task=task, **job)
        return ClaimedJob(lease, task, limit_key_of(task, payload), payload)

    async def execute(self, payload: bytes = b"{}", task: str = "chat") -> tuple[Outcome, str]:
        """Run one job through the executor; returns its outcome and id."""
        attempt = await self.attempt(payload, task)
        outcome = await asyncio.wait_for(self.executor.run(attempt), 10)
        return outcome, attempt.lease.job_id

    async def error(self, job_id: str) -> dict[str, Any]:
        """The stored error of a job, which the terminal event repeats."""
        record = await self.job(job_id)
        assert (record[b"status"], record[b"result"]) == (b"error", b"")
        error: dict[str, Any] = json.loads(record[b"error"])
        last = (await self.events(job_id))[-1]
        assert (last[b"type"], last[b"step"]) == (b"error", b"worker.error")
        data = json.loads(last[b"data"])
        assert isinstance(data.pop("ms"), int)
        assert data == error
        return error

    async def settled(self, job_id: str) -> bytes:

        async def ended() -> bytes | None:
            status = (await self.job(job_id)).get(b"status")
            return status if status in ENDS else None

        return bytes(await eventually(ended))

    async def ended(self, jobs: Iterable[str], timeout_s: float = 20.0) -> set[bytes]:
        jobs = list(jobs)

        async def statuses() -> set[bytes] | None:
            pipe = self.client.pipeline(transaction=False)
            for job_id in jobs:
                pipe.hget(self.keys.job(job_id), "status")
            found = set(await pipe.execute())
            return found if found <= ENDS else None

        return set(await eventually(statuses, timeout_s))

    async def run_job(self, status: bytes = b"done", /, **job: Any) -> str:
        """Start the worker if it does not run, and run a job to this end; returns its id."""
        if self._reading is None:
            self.start()
        [job_id] = await self.post(**job)
        assert await self.settled(job_id) == status, await self.job(job_id)
        return job_id

    async def result(self, job_id: str) -> Any:
        return json.loads((await self.job(job_id))[b"result"])

    async def last_event(self, job_id: str, kind: bytes) -> None:

        async def is_last() -> bool:
            return (await self.types(job_id))[-1:] == [kind]

        await eventually(is_last)

    async def ends(self, job_id: str) -> list[bytes]:
        return [kind for kind in await self.types(job_id) if kind in ENDS]

    async def cancel(self, job_id: str, reason: bytes = b"{}") -> Answer:
        reply = await self.store.cancel(job_id, self.worker.group, reason, 600)
        return reply.answer

    async def dead_letters(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.client.xrange(self.keys.dead_letters)]

    async def all_acked(self) -> None:

        async def none_pending() -> bool:
            return await self.pending() == 0

        await eventually(none_pending)

    async def parsed_events(self, job_id: str) -> list[tuple[str, str, Any]]:
        """A job's events: type, step, data."""
        return [
            (event[b"type"].decode(), event[b"step"].decode(), json.loads(event[b"data"]))
            for event in await self.events(job_id)
        ]

    async def messages(self, count: int = 100) -> list[Message]:
        """Read messages as the reader would pass them on."""
        reply = await self.client.xreadgroup(
            self.worker.group, self.worker.consumer, {self.keys.queue: ">"}, count=count
        )
        return [Message.read(entry_id.decode(), fields) for entry_id, fields in reply[0][1]]


def connections_to(backend: Backend, reading: Any = None) -> Connections:
    return Connections(
        backend.client(),
        backend.wire(),
        reading or backend.wire(block_s=1.0),
        backend.sync_client(),
    )


def quick_terms(worker: WorkerIdentity) -> WorkerDefaults:
    return WorkerDefaults(worker.max_attempts, backoff=Backoff(0.01, max_s=0.05))


def limits_of(places: dict[str, int] | None) -> list[TaskLimit]:
    """`{"chat+plan": 1}` as limits."""
    return [TaskLimit(frozenset(name.split("+")), most) for name, most in (places or {}).items()]


def registry_of(handler: Callable[..., Any], *tasks: str, **terms: Any) -> Registry:
    """A registry in which one function handles all tasks."""
    registry = Registry()
    for task in tasks or ("chat",):
        registry.add(task, handler, **terms)
    return registry


def job_options(timeout_s: float | None = None, backoff: Backoff | None = None) -> bytes:
    return JobOptions(timeout_s, backoff).to_json()


async def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """Like `asyncio.wait_for`, also for work that swallows its cancellation."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        raise AssertionError(f"not done within {seconds} s")
    return task.result()


MakeWorker = Callable[..., WorkerHarness]


async def worker_maker(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[MakeWorker]:
    made: list[WorkerHarness] = []

    def make(
        handler: Callable[..., Any] | None = None,
        *,
        identity: WorkerIdentity = worker,
        **options: Any,
    ) -> WorkerHarness:
        registry = registry_of(handler) if handler is not None else None
        made.append(
            WorkerHarness(backend, keys, identity, options.pop("registry", registry), **options)
        )
        return made[-1]

    yield make
    for each in made:
        await each.close()
