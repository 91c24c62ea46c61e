"""Stays with a job until it has ended, for as long as its client stays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from starlette.types import Receive

from common import codec
from common.cancellation import cancel
from common.codec import Job
from common.contracts.jobs import DataField, EventField, FrameType
from common.errors import SluiceError, StoreUnavailable
from gateway.callers import Caller
from gateway.frames import Frame
from gateway.guard import bad_key
from gateway.lookup import client_leaves
from gateway.openai.job_errors import expired, stopping
from gateway.state import GatewayState

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A job that has ended is read again after a fault of Redis: so often, after so long.
READ_TRIES, READ_AGAIN_S = 10, 0.5
REASON = "the client has left"


class Seen(NamedTuple):
    """Something that happened to a job, or that the hub has to say."""

    type: str
    data: dict[str, Any]

    @classmethod
    def of(cls, frame: Frame) -> Seen:
        """A frame, as it was meant."""
        body = codec.loads(frame.ndjson)
        data = body[EventField.DATA.value]
        return cls(body[EventField.TYPE.value], data if isinstance(data, dict) else {})


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


class Following:
    """A job's events from the first to the last, however long that takes."""

    def __init__(
        self, state: GatewayState, caller: Caller, job_id: str, *, replayed: bool = False
    ) -> None:
        """`replayed`: it may have ended long ago, and its events may be gone."""
        self._unsure = replayed
        self._state = state
        self._caller = caller
        self.job_id = job_id
        self._source = state.hub.job(job_id)
        self._watch = state.hub.watch(self._source)
        self._ended = False

    async def next(self) -> list[Seen]:
        """What happened since; nothing once the job has ended. A Problem says why it goes no
        further."""
        if self._unsure:
            self._unsure = False
            await self._look()
        if self._ended:
            return []
        batch = await self._watch.next_batch()
        caller = self._caller
        if caller.key_id and not await self._state.access.callers.still_valid(caller):
            raise bad_key("The API key was revoked, or has expired, while you waited.")
        self._ended = not batch or batch[-1].type in self._source.ending
        seen = [Seen.of(frame) for frame in batch]
        for notice in (one for one, frame in zip(seen, batch) if not frame.id):
            await self._heed(notice)
        return seen

    async def end(self) -> Job:
        """The job, once it has ended."""
        while await self.next():
            pass
        return await self._read()

    def close(self) -> None:
        """Nobody follows any more."""
        self._watch.close()

    async def _heed(self, notice: Seen) -> None:
        """What the hub says is meant for clients that can come back; ours cannot."""
        hub = self._state.hub
        if notice.type == FrameType.GONE.value:
            raise expired(self.job_id)
        if notice.type == FrameType.SHUTDOWN.value:
            if hub.closing:
                raise stopping(self.job_id)
            position = self._watch.position
            self._watch.close()
            self._watch = hub.watch(self._source, position)
            self._ended = False
        elif notice.type == FrameType.HEARTBEAT.value:
            await self._look()  # a foreign worker may have left without the last event

    async def _look(self) -> None:
        with contextlib.suppress(SluiceError):
            job = await self._state.store.get(self.job_id)
            self._ended = job is not None and job.terminal

    async def _read(self) -> Job:
        for attempt in range(READ_TRIES):
            try:
                job = await self._state.store.get(self.job_id)
            except StoreUnavailable:
                if attempt == READ_TRIES - 1:
                    raise
                await asyncio.sleep(READ_AGAIN_S)
                continue
            if job is None:
                break
            return job
        raise expired(self.job_id)


async def attended(
    work: Coroutine[Any, Any, T], receive: Receive, give_up: Callable[[], Awaitable[None]]
) -> T:
    """What `work` comes to. Once the client has left, or takes nothing any more, gives up first
    and then raises ClientLeft."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(client_leaves(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    except ClientLeft:
        await give_up()
        raise
    finally:
        await cancel(working, leaving)


async def cancel_job(state: GatewayState, job_id: str) -> None:
    """Nobody waits for it: end it, so that it takes no one else's place."""
    settings = state.settings
    data = codec.dumps({DataField.REASON.value: REASON})
    try:
        await state.store.cancel(job_id, settings.worker_group, data, settings.job_ttl_s)
    except SluiceError as error:
        log.warning("job %s of a client that has left was not canceled: %s", job_id, error)
