"""Helpers for tests of the job scripts: a harness with store, queue and worker, and a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.common.contracts.jobs import DeadReason, JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.queue import DeadLetter, QueueStore
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import (
    Claim,
    JobOutcome,
    JobStore,
    Lease,
    NewJob,
    PendingEvent,
    WorkerIdentity,
    renewal_record,
)
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import Reply
from tests.support.servers import Backend
from tests.support.store.base import RedisHarness

DONE = JobOutcome("done", "worker.done", b'{"ms":1}', result=b'{"text":"hi"}')
FAILED = JobOutcome("error", "worker.error", b'{"ms":1}', error=b'{"kind":"x"}')
GIVEN_UP = FAILED._replace(dead_letter=True)
WHY = b'{"by":"a test"}'


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


class StoreHarness(RedisHarness):
    """A job store on one backend, with shortcuts for common preparations."""

    def __init__(self, backend: Backend, keys: JobKeys, worker: WorkerIdentity) -> None:
        self.backend = backend
        self.keys = keys
        self.worker = worker
        self.client = backend.client()
        self.batcher = ScriptBatcher(backend.wire(), keys, CORE_SCRIPT, retry_for_s=5.0)
        self.store = JobStore(self.client, keys, self.batcher)
        self.queue = QueueStore(self.client, keys, self.batcher)

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

    async def waiting(self, **changes: object) -> tuple[str, str]:
        """A job whose message was read; returns job id and message id."""
        if not await self.client.exists(self.keys.queue):
            await self.group()
        [job_id] = await self.post(**changes)
        [message_id] = await self.take()
        return job_id, message_id

    async def begin(self, job_id: str, message_id: str, token: str) -> Any:
        [outcome] = await self.store.begin([Claim(job_id, message_id, token)], self.worker)
        return outcome

    async def begin_next(self, lease: Lease, token: str) -> Any:
        """Begin the next attempt of a job."""
        return await self.begin(lease.job_id, lease.message_id, token)

    async def begin_limited(self, job_id: str, message_id: str, token: str, slots: int) -> Any:
        """Begin a job of a task with a limit of running jobs."""
        claim = Claim(job_id, message_id, token, max_running=slots)
        limits = {token: self.keys.running("chat")}
        [outcome] = await self.store.begin([claim], self.worker, limits)
        return outcome

    async def running(self, token: str = "t1", **changes: object) -> Lease:
        """A job with its first attempt running."""
        job_id, message_id = await self.waiting(**changes)
        reply = await self.begin(job_id, message_id, token)
        assert reply.answer.value == "run"
        return Lease(job_id, message_id, int(reply.value), token)

    async def running_limited(self, token: str = "t1", slots: int = 1) -> Lease:
        """The same for a limited task."""
        job_id, message_id = await self.waiting()
        reply = await self.begin_limited(job_id, message_id, token, slots)
        assert reply.answer.value == "run"
        return Lease(job_id, message_id, int(reply.value), token, self.keys.running("chat"))

    async def again(self, lease: Lease, token: str) -> Lease:
        """Begin the next attempt of a released job that is due."""
        await self.client.hset(self.keys.lease(lease.job_id), "not_before_ms", "1")
        reply = await self.begin_next(lease, token)
        assert reply.answer.value == "run"
        return lease._replace(attempt=int(reply.value), token=token)

    async def take_over(self, lease: Lease, token: str = "t2") -> Lease:
        """Let the lease expire and another attempt begin."""
        await self.expire(lease)
        reply = await self.begin_next(lease, token)
        return Lease(lease.job_id, lease.message_id, int(reply.value), token)

    async def expire(self, lease: Lease) -> None:
        await self.client.hset(self.keys.lease(lease.job_id), "deadline_ms", "1")

    async def renew(self, lease: Lease) -> Reply:
        return await self.batcher.call(renewal_record(lease, self.keys, self.worker))

    async def emit(self, lease: Lease, first: int, events: Sequence[PendingEvent]) -> Any:
        return await self.store.emit(lease, self.worker, first, events)

    async def finish(self, lease: Lease, ending: JobOutcome = DONE, **rest: Any) -> Any:
        return await self.store.finish(lease, self.worker, ending, **rest)

    async def retry(
        self, lease: Lease, delay_ms: int = 0, error: bytes = b'{"kind":"x"}', **rest: Any
    ) -> Any:
        return await self.store.retry(lease, self.worker, delay_ms, error, WHY, **rest)

    async def release(self, lease: Lease, **rest: Any) -> Any:
        return await self.store.release(lease, self.worker, WHY, **rest)

    async def cancel(self, job_id: str) -> Reply:
        return await self.store.cancel(job_id, self.worker.group, WHY, 600)

    async def dead_letter(self, message_id: str, fields: dict[bytes, bytes]) -> Any:
        """Dead-letter a message without a job, as a worker does."""
        return await self.store.dead_letter(
            message_id, DeadReason.NO_JOB, fields, self.worker.group
        )

    async def writes_nothing(self, lease: Lease) -> None:
        """I4: nothing that a finished attempt writes has an effect."""
        before = await self.snapshot()
        assert await self.emit(lease, 1, [note("late")]) is Answer.LOST
        assert (await self.renew(lease)).answer is Answer.LOST
        for ending in (DONE, FAILED, GIVEN_UP):
            late = await self.finish(lease, ending, first=1, events=[note("late")])
            assert late in (Answer.LOST, Answer.ALREADY)
        assert await self.snapshot() == before

    async def held(self, job_id: str) -> dict[bytes, bytes]:
        """The lease hash."""
        return await self.client.hgetall(self.keys.lease(job_id))  # type: ignore[no-any-return]

    async def claim_for(self, consumer: str, message_id: str, idle_ms: int = 0) -> None:
        """Assign a message to a consumer with this idle time."""
        await self.client.xclaim(
            self.keys.queue, self.worker.group, consumer, 0, [message_id], idle=idle_ms, justid=True
        )

    async def autoclaim(self, consumer: str, min_idle_ms: int) -> list[str]:
        """Ids of the messages that a consumer may take over."""
        reply = await self.client.xautoclaim(
            self.keys.queue, self.worker.group, consumer, min_idle_ms, "0-0"
        )
        return [entry_id.decode() for entry_id, _ in reply[1]]

    async def pending_entry(self, message_id: str = "") -> dict[str, Any]:
        """This pending message, or the only one."""
        ends = (message_id or "-", message_id or "+")
        [entry] = await self.client.xpending_range(self.keys.queue, self.worker.group, *ends, 9)
        return entry  # type: ignore[no-any-return]

    async def letters(self) -> list[DeadLetter]:
        return await self.queue.dead_letters("+", 100)

    async def now_ms(self) -> int:
        seconds, micros = await self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def job(self, job_id: str) -> dict[bytes, bytes]:
        return await self.client.hgetall(self.keys.job(job_id))  # type: ignore[no-any-return]

    async def events(self, job_id: str) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.client.xrange(self.keys.events(job_id))]

    async def status(self, job_id: str) -> bytes | None:
        return await self.client.hget(self.keys.job(job_id), "status")  # type: ignore[no-any-return]

    async def data(self, job_id: str) -> list[bytes]:
        return [fields[b"data"] for fields in await self.events(job_id)]

    async def queued(self) -> list[dict[bytes, bytes]]:
        """The messages on the queue, without their ids."""
        return [fields for _, fields in await self.client.xrange(self.keys.queue)]

    async def listen(self, channel: str) -> asyncio.Queue[bytes]:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        wire = self.backend.wire(on_message=heard.put_nowait)
        await wire.execute_command("SUBSCRIBE", channel)
        return heard

    async def types(self, job_id: str) -> list[bytes]:
        return [fields[b"type"] for fields in await self.events(job_id)]

    async def pending(self) -> int:
        summary = await self.client.xpending(self.keys.stream, self.worker.group)
        return int(summary["pending"])

    async def snapshot(self) -> dict[bytes, Any]:
        """Everything in Redis except TTLs, and what is pending on the queue."""
        found = await super().snapshot()
        if await self.client.type(self.keys.queue) == b"stream":
            for group in await self.client.xinfo_groups(self.keys.queue):
                found[group["name"]] = await self.client.xpending(self.keys.queue, group["name"])
        return found

    def names(self, job_id: str, *parts: str) -> list[str]:
        """The keys of a job: of these parts, or its record, events and lease."""
        return [getattr(self.keys, part)(job_id) for part in parts or ("job", "events", "lease")]

    async def set_ttls(self, job_id: str, seconds: int, *parts: str) -> None:
        for name in self.names(job_id, *parts):
            await self.client.expire(name, seconds)

    async def check_ttls(self, job_id: str, seconds: int, *parts: str) -> None:
        for name in self.names(job_id, *parts):
            assert seconds - 10 < await self.client.ttl(name) <= seconds, name

    async def without_ttl(self) -> list[bytes]:
        """Keys of jobs without a TTL (I7)."""
        keys = [
            *await self.client.keys(f"{self.keys.tag}job:*"),
            *await self.client.keys(f"{self.keys.tag}idempotency*"),
        ]
        return [key for key in keys if await self.client.ttl(key) < 0]


class Proxy:
    """A unix-socket proxy that can lose replies, stop forwarding, or close connections."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix://")
        self._dir = Path(tempfile.mkdtemp(prefix="sluice-proxy-"))
        self.url = f"unix://{self._dir}/p"
        self.connections = 0
        #: Number of next reply chunks that are lost together with their connection.
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
