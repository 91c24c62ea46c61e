"""A whole worker inside the test's own process, wired as `worker.main` does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.store import JobStore, Lease, WorkerIdentity
from tests.backends import Backend
from tests.common.kit import Scene
from tests.conftest import eventually
from worker.executor import Executor, Outcome
from worker.handlers import echo
from worker.intake import Attempt, Intake, Message
from worker.lease import LeaseKeeper
from worker.main import drain
from worker.reader import Reader
from worker.registry import Registry
from worker.slots import Slots


class Rig(Scene):
    """A scene with a worker in it. `start` lets it read; without, tests drive its parts."""

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
        line: Any = None,
    ) -> None:
        super().__init__(backend, keys, worker)
        if registry is None:
            registry = Registry()
            echo.register(registry)
        # For ever patient, as in production.
        self.worker_coalescer = Coalescer(backend.wire(), keys)
        worker_store = JobStore(self.client, keys, self.worker_coalescer)
        self.leases = LeaseKeeper(backend.sync_client(), keys, worker)
        self.slots = Slots(max_inflight)
        self.executor = Executor(worker_store, registry, self.leases, worker, self.slots.leave)
        self.intake = Intake(worker_store, worker)
        self.reader = Reader(
            line or backend.wire(block_s=1.0), keys.queue, worker, self.slots, self.intake,
            self.executor, count, block_ms,
        )  # fmt: skip
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.leases.start()
        self._reading = asyncio.create_task(self.reader.run())

    async def stop(self, grace_s: float = 5.0) -> None:
        if self._reading is not None:
            await drain(self.reader, self._reading, self.slots, self.executor, grace_s)
            self._reading = None

    async def close(self) -> None:
        with contextlib.suppress(AssertionError):
            await within(5, self.stop(0.1))
        self.leases.stop()
        await self.worker_coalescer.close()
        await super().close()

    async def attempt(self, payload: bytes = b"{}", task: str = "chat", **job: Any) -> Attempt:
        """An attempt that has begun, ready for the executor."""
        lease: Lease = await self.running(payload=payload, task=task, **job)
        return Attempt(lease, task, payload)

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
        """Wait for a job's end; returns its status."""

        async def ended() -> bytes | None:
            status = (await self.job(job_id)).get(b"status")
            return status if status in (b"done", b"error", b"canceled") else None

        return bytes(await eventually(ended))

    async def messages(self, count: int = 100) -> list[Message]:
        """Read messages as the reader would hand them on."""
        reply = await self.client.xreadgroup(
            self.worker.group, self.worker.consumer, {self.keys.queue: ">"}, count=count
        )
        return [Message(entry_id.decode(), fields) for entry_id, fields in reply[0][1]]


def registry_of(handler: Callable[..., Any], *tasks: str) -> Registry:
    """A registry in which one function does everything."""
    registry = Registry()
    for task in tasks or ("chat",):
        registry.add(task, handler)
    return registry


async def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """Like `asyncio.wait_for`, but not fooled by work that swallows its cancellation."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        raise AssertionError(f"not done within {seconds} s")
    return task.result()


RigMaker = Callable[..., Rig]


async def rig_maker(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[RigMaker]:
    """Makes rigs and closes them all."""
    made: list[Rig] = []

    def make(
        handler: Callable[..., Any] | None = None,
        *,
        identity: WorkerIdentity = worker,
        **options: Any,
    ) -> Rig:
        registry = registry_of(handler) if handler is not None else None
        made.append(Rig(backend, keys, identity, options.pop("registry", registry), **options))
        return made[-1]

    yield make
    for rig in made:
        await rig.close()
