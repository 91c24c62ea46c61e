"""Submits the job of a request and follows it until it ends or the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from sluice.common import codec
from sluice.common.aio import cancel
from sluice.common.codec import Job
from sluice.common.contracts.jobs import DataField, EventField, FrameType, JobField, Status, Task
from sluice.common.errors import SluiceError, StoreUnavailable
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.auth.middleware import invalid_key
from sluice.gateway.events.frames import Frame
from sluice.gateway.features.openai.errors import (
    gateway_stopping,
    job_expired,
    job_failure,
    job_headers,
)
from sluice.gateway.jobs.lookup import wait_for_disconnect
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.jobs.submit import submit
from sluice.gateway.state import GatewayState, state_of

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Attempts to read an ended job while Redis fails, and seconds between them.
READ_TRIES, READ_RETRY_S = 10, 0.5
CANCEL_REASON = "the client has left"


class JobEvent(NamedTuple):
    """An event of a job, or a notice of the hub."""

    type: str
    data: dict[str, Any]

    @classmethod
    def of(cls, frame: Frame) -> JobEvent:
        """The event in a frame."""
        body = codec.loads(frame.ndjson)
        data = body[EventField.DATA]
        return cls(body[EventField.TYPE], data if isinstance(data, dict) else {})


class ClientDisconnected(Exception):
    """The client has disconnected."""


class JobFollower:
    """Yields all events of a job, from the first to the last."""

    def __init__(
        self, state: GatewayState, caller: Caller, job_id: str, *, replayed: bool = False
    ) -> None:
        """`replayed`: the job may have ended long ago, and its events may have expired."""
        self._check_ended_first = replayed
        self._state = state
        self._caller = caller
        self.job_id = job_id
        self._source = state.hub.job(job_id)
        self._watch = state.hub.subscribe(self._source)
        self._ended = False

    async def next(self) -> list[JobEvent]:
        """The next events; empty once the job has ended. Raises a problem if it cannot go on."""
        if self._check_ended_first:
            self._check_ended_first = False
            await self._refresh_ended()
        if self._ended:
            return []
        batch = await self._watch.next_batch()
        caller = self._caller
        if caller.key_id and not await self._state.access.callers.is_still_valid(caller):
            raise invalid_key("The API key was revoked or expired during the request.")
        self._ended = not batch or batch[-1].type in self._source.ending
        seen = [JobEvent.of(frame) for frame in batch]
        for notice in (one for one, frame in zip(seen, batch) if not frame.id):
            await self._handle_notice(notice)
        return seen

    async def end(self) -> Job:
        """The job, once it has ended."""
        while await self.next():
            pass
        return await self._read()

    def close(self) -> None:
        self._watch.close()

    async def _handle_notice(self, notice: JobEvent) -> None:
        """Handle a notice here: clients of this API cannot resume a stream."""
        hub = self._state.hub
        if notice.type == FrameType.GONE:
            raise job_expired(self.job_id)
        if notice.type == FrameType.SHUTDOWN:
            if hub.closing:
                raise gateway_stopping(self.job_id)
            position = self._watch.position
            with contextlib.suppress(StoreUnavailable):
                # It is beyond the end of the stream if a failover has lost events.
                position = min(position, await hub.last_position(self._source))
            self._watch.close()
            self._watch = hub.subscribe(self._source, position)
            self._ended = False
        elif notice.type == FrameType.HEARTBEAT:
            await self._refresh_ended()  # a third-party worker may not write the terminal event

    async def _refresh_ended(self) -> None:
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
                await asyncio.sleep(READ_RETRY_S)
                continue
            if job is None:
                break
            return job
        raise job_expired(self.job_id)


async def run_while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, give_up: Callable[[], Awaitable[None]]
) -> T:
    """The result of `work`. If the client disconnects or stops reading, calls `give_up` and raises
    ClientDisconnected."""
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    except ClientDisconnected:
        await give_up()
        raise
    finally:
        await cancel(working, disconnect)


async def cancel_job(state: GatewayState, job_id: str) -> None:
    """Cancel a job whose client has disconnected."""
    settings = state.settings
    data = codec.dumps({DataField.REASON: CANCEL_REASON})
    try:
        await state.store.cancel(job_id, settings.worker_group, data, settings.job_ttl_s)
    except SluiceError as error:
        log.warning("job %s: not canceled after its client disconnected: %s", job_id, error)


@dataclass(frozen=True)
class PendingJob:
    """The accepted job of a request."""

    state: GatewayState
    caller: Caller
    job_id: str
    #: Headers of the response, also of an error.
    headers: dict[str, str]
    #: True if the client can repeat the request for the same job; then it is not canceled.
    has_idempotency_key: bool
    replayed: bool

    def follow(self) -> JobFollower:
        """Follow the job from its first event; the caller closes the follower."""
        return JobFollower(self.state, self.caller, self.job_id, replayed=self.replayed)

    async def give_up(self) -> None:
        if not self.has_idempotency_key:
            await cancel_job(self.state, self.job_id)


async def submit_job(request: Request, task: Task, payload: dict[str, Any]) -> PendingJob:
    """Submit the job of a request; raises the problem of a refusal."""
    state = state_of(request)
    check_streams(request)
    body = {JobField.TASK: task.value, JobField.PAYLOAD: payload}
    submitted = await submit(request, body)
    return PendingJob(
        state,
        caller_of(request),
        submitted.job_id,
        {**job_headers(submitted.job_id), **submitted.headers},
        has_idempotency_key="idempotency-key" in request.headers,
        replayed=submitted.replayed,
    )


class JobResult(NamedTuple):
    """The result of a job that is done."""

    created_s: int
    result: Any


async def wait_for_result(request: Request, pending: PendingJob) -> JobResult:
    """Wait for the result. Raises the problem of a failed job, or ClientDisconnected."""
    follower = pending.follow()
    try:
        job = await run_while_connected(follower.end(), request.receive, pending.give_up)
    finally:
        follower.close()
    return job_result(job)


def job_result(job: Job) -> JobResult:
    """The result of an ended job; raises the problem of a failed one."""
    if job.status != Status.DONE.value:
        raise job_failure(job)
    try:
        result = codec.loads(job.result)
    except ValueError:
        result = None
    return JobResult(job.created_ts // 1000, result)
