"""Reports events and outcomes of attempts to BullMQ."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis.exceptions import RedisError
from redis.typing import EncodableT

from sluice.common import codec
from sluice.common.contracts.bullmq import BullEvent, BullEventField, BullField
from sluice.common.contracts.jobs import DataField, Status
from sluice.common.contracts.models import HandlerEventType, ProgressField
from sluice.common.contracts.queue import Answer
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.store import Fence, JobOutcome, Lease, PendingEvent, WorkerIdentity
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.worker.bullmq.job import LockedJob
from sluice.worker.bullmq.script_client import (
    CompletionBatcher,
    ScriptClient,
    is_transient_error,
    retry_until,
)
from sluice.worker.bullmq.scripts import QueueScripts, ScriptCall
from sluice.worker.errors import InvalidResult, JobError

if TYPE_CHECKING:
    from sluice.common.settings.bullmq import BullmqWorkerSettings

log = logging.getLogger(__name__)

#: Error codes of the scripts: no such job, no lock, not active, locked by another worker.
_LOST: Final = frozenset((-1, -2, -3, -6))
#: Error codes of the scripts: children are pending, or have failed.
_PENDING_CHILDREN, _FAILED_CHILDREN = -4, -9
_DONE, _CANCELED = Status.DONE.value, Status.CANCELED.value
_PROGRESS = HandlerEventType.PROGRESS
_CANCELED_REASON: Final = "cancelled"
#: Longer stack traces are cut: they are part of every read of the job.
MAX_TRACE_CHARS: Final = 8000
#: Stack traces kept if the job does not set a number.
MOST_TRACES: Final = 10
#: Events kept in the queue's stream, as BullMQ does by default.
_MOST_EVENTS: Final = 10_000
#: Seconds for which the end of a job is retried if the lease keeper does not hold its lock.
UNHELD_RETRY_S: Final = 0.5


class UnfinishedChildren(JobError):
    """The job has children that have not ended, or one that has failed."""

    kind = "unfinished_children"


class JobFetcher(Protocol):
    """Starts the jobs that the end of another job has locked."""

    def may_fetch(self) -> bool:
        """True if the end of a job may lock the next one."""

    def start_locked(self, reply: list[Any], token: str) -> bool:
        """Start the job in a script's reply, which is locked with `token`; False if there is
        none."""

    def mark_unsure(self) -> None:
        """A reply of Redis was lost, and with it perhaps a job that it had locked."""


class BullMQBackend:
    """Writes to the jobs of one queue that run here. The end of a job also locks the next one."""

    def __init__(
        self,
        client: ScriptClient,
        scripts: QueueScripts,
        settings: BullmqWorkerSettings,
        good_until: Callable[[str], float | None],
        jobs: dict[str, LockedJob],
        fetcher: JobFetcher,
    ) -> None:
        """`good_until` is the `time.monotonic()` value until which a job's lock is certainly held;
        None if the lease keeper does not hold it. `jobs` are the jobs that run here, by id."""
        self._client = client
        self._scripts = scripts
        self._completions = CompletionBatcher(client, scripts)
        self._keys = scripts.keys
        self._good_until = good_until
        self._retry_event = settings.bullmq_retry_event
        self._most_bytes = settings.bullmq_result_max_bytes
        self._jobs = jobs
        self._fetcher = fetcher

    @property
    def queue(self) -> str:
        """Name of the queue in traces."""
        return self._keys.queue

    def record_fault(self, lease: Lease, error: BaseException) -> None:
        """Keep a handler's traceback for the job's stack traces."""
        job = self._jobs.get(lease.job_id)
        if job is not None:
            job.fault = "".join(traceback.format_exception(error))

    # -- outcomes --------------------------------------------------------------------------

    async def finish(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        ending: JobOutcome,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """End a job: OK, or LOST if another worker owns it. Raises JobError if BullMQ refuses this
        outcome."""
        job = self._jobs[lease.job_id]
        if ending.status == _DONE and len(ending.result) > self._most_bytes:
            raise InvalidResult(
                f"the handler returned {len(ending.result)} bytes of JSON; "
                f"at most {self._most_bytes}"
            )
        if events and await self._write_events(job, events) is not Answer.OK:
            return Answer.LOST
        fetch = self._fetcher.may_fetch()
        if ending.status == _DONE:
            end = self._scripts.end(job, ending.result, fetch=fetch)
            answer = await self._end(job, partial(self._completions.add, end))
        else:
            reason = (
                _CANCELED_REASON if ending.status == _CANCELED else _error_message(ending.error)
            )
            call = self._scripts.fail(job, reason, self._traces(job, reason), fetch=fetch)
            answer = await self._end(job, partial(self._client.call, call))
        if job.has_steps or ending.status == _CANCELED:
            await self._forget(job)
        return answer

    async def retry(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        delay_ms: int,
        error: bytes,
        data: bytes,
        free: bool = False,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """Give the job another attempt later: OK or LOST."""
        job = self._jobs[lease.job_id]
        if events and await self._write_events(job, events) is not Answer.OK:
            return Answer.LOST
        reason = _error_message(error)
        fields = {BullField.FAILED_REASON: reason, **self._traces(job, reason)}
        if delay_ms or free:
            fetch = self._fetcher.may_fetch()
            call = self._scripts.delay(job, delay_ms, fields, free=free, fetch=fetch)
        else:
            call = self._scripts.retry(job, fields)
        answer = await self._end(job, partial(self._client.call, call))
        if answer is Answer.OK and self._retry_event and not free:
            await self._emit_retry(job, delay_ms)
        return answer

    async def release(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        data: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """Let another worker take the job at once: OK or LOST."""
        return await self.release_job(self._jobs[lease.job_id])

    async def release_job(self, job: LockedJob) -> Answer:
        """Like `release`, also for a job whose handler has not started."""
        call = self._scripts.release(job)
        answer = await self._end(job, partial(self._client.call, call))
        if answer is Answer.OK and job.priority:  # the script adds no marker for these jobs
            await self._command("ZADD", self._keys.marker, 0, "0")
        return answer

    async def _end(self, job: LockedJob, operation: Callable[[], Awaitable[Any]]) -> Answer:
        """Repeat the call until Redis replies, while the lock is held. The token makes it safe."""
        again = False
        try:
            reply = await operation()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            if not is_transient_error(error):
                raise StoreUnavailable(str(error)) from error
            again = True  # Redis may have run the first call
            until = self._good_until(job.id)
            if until is None:
                until = time.monotonic() + UNHELD_RETRY_S
            reply = await retry_until(operation, until)
            self._fetcher.mark_unsure()
        if isinstance(reply, list):
            self._fetcher.start_locked(reply, job.token)
        elif reply in _LOST:
            if not again:
                return Answer.LOST
            log.info("job %s had already ended: the first reply was lost", job.id)
        elif reply == _PENDING_CHILDREN:
            raise UnfinishedChildren("the job has children that have not ended")
        elif reply == _FAILED_CHILDREN:
            raise UnfinishedChildren("the job cannot complete: at least one of its children failed")
        return Answer.OK

    def _traces(self, job: LockedJob, reason: str) -> dict[str, EncodableT]:
        """The stack traces of a job, one per failed attempt, including this one."""
        try:
            traces = codec.loads_node(job.stacktrace) if job.stacktrace else []
        except ValueError:
            traces = []
        limit = job.options.stack_limit
        kept = MOST_TRACES if limit is None else limit
        traces = [*(traces if isinstance(traces, list) else ()), job.fault or reason]
        traces = [str(trace)[-MAX_TRACE_CHARS:] for trace in traces[-kept:]] if kept else []
        return {BullField.STACKTRACE: codec.dumps_node(traces).decode()}

    async def _emit_retry(self, job: LockedJob, delay_ms: int) -> None:
        """Publish Sluice's `retry` event; an error is only logged."""
        await self._command(
            "XADD", self._keys.events, "MAXLEN", "~", _MOST_EVENTS, "*",
            BullEventField.EVENT, BullEvent.RETRY,
            BullEventField.JOB_ID, job.id, BullEventField.DELAY, delay_ms,
        )  # fmt: skip

    async def _forget(self, job: LockedJob) -> None:
        await self._command("DEL", self._keys.steps(job.id), self._keys.cancel(job.id))

    async def _command(self, *args: EncodableT) -> None:
        """Run a command whose failure does not matter for the job."""
        try:
            await self._client.connection.execute_command(*args)
        except (RedisError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %s", error)

    # -- while the job runs ----------------------------------------------------------------

    async def emit(
        self, lease: Lease, worker: WorkerIdentity, first: int, events: Sequence[PendingEvent]
    ) -> Answer:
        """Write events to the job's log, and progress to its `progress`: OK or LOST."""
        return await self._write_events(self._jobs[lease.job_id], events)

    async def _write_events(self, job: LockedJob, events: Sequence[PendingEvent]) -> Answer:
        if not await self._holds_lock(job):
            return Answer.LOST
        calls: list[ScriptCall] = []
        for event in events:
            calls += self._calls(job, event)
        try:  # Redis runs them in order, because they share a connection
            await asyncio.gather(*(self._client.call(call) for call in calls))
        except (RedisError, *TRANSIENT_ERRORS) as error:
            raise StoreUnavailable(str(error)) from error
        return Answer.OK

    def _calls(self, job: LockedJob, event: PendingEvent) -> list[ScriptCall]:
        scripts, most = self._scripts, job.options.log_lines
        if event.type == _PROGRESS:
            data = codec.loads(event.data)
            percent = data.get(ProgressField.PERCENT) if isinstance(data, dict) else None
            if percent is not None:
                calls = [scripts.progress(job.id, codec.dumps(percent))]
                message = data.get(ProgressField.MESSAGE)
                if message is not None and most:
                    calls.append(scripts.log(job.id, str(message).encode(), most))
                return calls
        line = b"%s %s" % (event.type.encode(), event.data)
        return [scripts.log(job.id, line, most)] if most else []

    async def _holds_lock(self, job: LockedJob) -> bool:
        """True if this worker holds the lock. The scripts for progress and logs do not check it."""
        found = await self._read("GET", self._keys.lock(job.id))
        return bool(found == job.token.encode())

    async def save(
        self,
        lease: Lease,
        worker: WorkerIdentity,
        name: str,
        value: bytes,
        first: int = 1,
        events: Sequence[PendingEvent] = (),
    ) -> Answer:
        """Store a step for later attempts, after the events before it: OK or LOST."""
        job = self._jobs[lease.job_id]
        if events:
            if await self._write_events(job, events) is not Answer.OK:
                return Answer.LOST
        elif not await self._holds_lock(job):
            return Answer.LOST
        job.has_steps = True
        await self._read("HSET", self._keys.steps(job.id), name, value)
        await self._read("EXPIRE", self._keys.steps(job.id), worker.default_ttl_s)
        return Answer.OK

    async def saved(self, lease: Lease) -> dict[str, bytes] | None:
        """All steps that attempts of the job have stored; None if the attempt is over."""
        job = self._jobs[lease.job_id]
        if not await self._holds_lock(job):
            return None
        pairs = await self._read("HGETALL", self._keys.steps(job.id))
        job.has_steps = job.has_steps or bool(pairs)
        return {codec.decode_text(name): value for name, value in zip(pairs[::2], pairs[1::2])}

    async def children(self, lease: Lease) -> dict[str, Any]:
        """The results of the child jobs, by key."""
        pairs = await self._read("HGETALL", self._keys.processed(lease.job_id))
        return {
            codec.decode_text(key): codec.loads_node(value)
            for key, value in zip(pairs[::2], pairs[1::2])
        }

    def fence(self, lease: Lease) -> Fence:
        """Not available: a BullMQ lock is not a lease that Sluice's scripts can check."""
        raise JobError("this task needs a Sluice job; send it to /v1/jobs")

    async def _read(self, *args: EncodableT) -> Any:
        try:
            return await self._client.connection.execute_command(*args)
        except (RedisError, *TRANSIENT_ERRORS) as error:
            raise StoreUnavailable(str(error)) from error


def _error_message(error: bytes) -> str:
    """The text for `failedReason`, which is not JSON."""
    return str(codec.loads(error)[DataField.MESSAGE])
