"""What the tests of the job system's core share: a scene with one of everything, and a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.queue import QueueStore
from common.scripts import Reply
from common.store import (
    Claim,
    Ending,
    JobStore,
    Lease,
    NewJob,
    PendingEvent,
    WorkerIdentity,
    renewal,
)
from tests.backends import Backend

DONE = Ending("done", "worker.done", b'{"ms":1}', result=b'{"text":"hi"}')
FAILED = Ending("error", "worker.error", b'{"ms":1}', error=b'{"kind":"x"}')


def new_job(**changes: object) -> NewJob:
    fields: dict[str, object] = {
        "job_id": str(uuid.uuid4()),
        "task": "chat",
        "payload": b'{"text":"hello"}',
        "ttl_s": 3600,
    }
    return NewJob(**{**fields, **changes})  # type: ignore[arg-type]


def note(text: str) -> PendingEvent:
    """A handler's event."""
    return PendingEvent("message", "worker.echo", b'{"text":"%s"}' % text.encode())


class Scene:
    """A job store on one backend, with shortcuts for what most tests have to do first."""

    def __init__(self, backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> None:
        self.backend = backend
        self.keys = keys
        self.worker = worker
        self.client = backend.client()
        self.coalescer = Coalescer(backend.wire(), keys, patience_s=5.0)
        self.store = JobStore(self.client, keys, self.coalescer)
        self.queue = QueueStore(self.client, keys, self.coalescer)

    async def group(self) -> None:
        await self.client.xgroup_create(self.keys.queue, self.worker.group, id="0", mkstream=True)

    async def post(self, count: int = 1, **changes: object) -> list[str]:
        jobs = [new_job(**changes) for _ in range(count)]
        for job in jobs:
            await self.store.enqueue(job, self.worker.group, 10**9)
        return [job.job_id for job in jobs]

    async def take(self, count: int = 1, consumer: str = "c1") -> list[str]:
        """Read messages for the group; returns their ids."""
        reply = await self.client.xreadgroup(
            self.worker.group, consumer, {self.keys.queue: ">"}, count=count
        )
        return [entry_id.decode() for entry_id, _ in reply[0][1]] if reply else []

    async def begin(self, job_id: str, message_id: str, token: str) -> Any:
        [outcome] = await self.store.begin([Claim(job_id, message_id, token)], self.worker)
        return outcome

    async def running(self, token: str = "t1", **changes: object) -> Lease:
        """A job that has begun its first attempt."""
        if not await self.client.exists(self.keys.queue):
            await self.group()
        [job_id] = await self.post(**changes)
        [message_id] = await self.take()
        reply = await self.begin(job_id, message_id, token)
        assert reply.answer.value == "run"
        return Lease(job_id, message_id, int(reply.value), token)

    async def take_over(self, lease: Lease, token: str = "t2") -> Lease:
        """Let the lease run out and another try begin."""
        await self.expire(lease)
        reply = await self.begin(lease.job_id, lease.message_id, token)
        return Lease(lease.job_id, lease.message_id, int(reply.value), token)

    async def expire(self, lease: Lease) -> None:
        await self.client.hset(self.keys.lease(lease.job_id), "deadline_ms", "1")

    async def renew(self, lease: Lease) -> Reply:
        return await self.coalescer.call(renewal(lease, self.keys, self.worker))

    async def emit(self, lease: Lease, first: int, events: Sequence[PendingEvent]) -> Any:
        return await self.store.emit(lease, self.worker, first, events)

    async def finish(self, lease: Lease, ending: Ending = DONE, **rest: Any) -> Any:
        return await self.store.finish(lease, self.worker, ending, **rest)

    async def job(self, job_id: str) -> dict[bytes, bytes]:
        return await self.client.hgetall(self.keys.job(job_id))  # type: ignore[no-any-return]

    async def events(self, job_id: str) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.client.xrange(self.keys.events(job_id))]

    async def types(self, job_id: str) -> list[bytes]:
        return [fields[b"type"] for fields in await self.events(job_id)]

    async def pending(self) -> int:
        summary = await self.client.xpending(self.keys.queue, self.worker.group)
        return int(summary["pending"])

    async def snapshot(self) -> dict[bytes, Any]:
        """Everything in Redis except times to live: equal means nothing was written."""
        keys = sorted(await self.client.keys("*"))
        kinds = self.client.pipeline(transaction=False)
        for key in keys:
            kinds.type(key)
        contents = self.client.pipeline(transaction=False)
        for key, kind in zip(keys, await kinds.execute()):
            if kind == b"hash":
                contents.hgetall(key)
            elif kind == b"stream":
                contents.xrange(key)
            elif kind == b"list":
                contents.lrange(key, 0, -1)
            else:
                contents.get(key)
        found = dict(zip(keys, await contents.execute()))
        if await self.client.type(self.keys.queue) == b"stream":
            for group in await self.client.xinfo_groups(self.keys.queue):
                found[group["name"]] = await self.client.xpending(self.keys.queue, group["name"])
        return found

    async def without_ttl(self) -> list[bytes]:
        """Keys of jobs that would live for ever (I7)."""
        keys = await self.client.keys("job:*") + await self.client.keys("idempotency*")
        return [key for key in keys if await self.client.ttl(key) < 0]

    async def close(self) -> None:
        await self.coalescer.close()


class Proxy:
    """A unix-socket middleman that can lose replies, fall silent, or hang up."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix://")
        self._dir = Path(tempfile.mkdtemp(prefix="sluice-proxy-"))
        self.url = f"unix://{self._dir}/p"
        self.connections = 0
        #: How many of the next chunks of replies are lost together with their connection.
        self.lose_replies = 0
        self.silent = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_unix_server(self._serve, f"{self._dir}/p")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._dir)

    def hang_up(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, up_writer}
        for pump in (self._pump(reader, up_writer), self._replies(up_reader, writer)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.transport.abort()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.lose_replies:
                    self.lose_replies -= 1
                    break
                if not self.silent:
                    writer.write(data)
        writer.transport.abort()
