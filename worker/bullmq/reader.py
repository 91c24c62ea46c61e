"""Takes jobs from one BullMQ queue, never more than there are free slots."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.worker.bullmq.job import LockedJob
from sluice.worker.bullmq.script_client import FIRST_PAUSE_S, LONGEST_PAUSE_S, ScriptClient
from sluice.worker.bullmq.scripts import QueueScripts, now_ms
from sluice.worker.queue.slots import Slots

log = logging.getLogger(__name__)

#: Seconds to wait at least, because the clock of the producer that delayed a job may differ.
SHORTEST_WAIT_S: Final = 0.002
#: Seconds that a stopping worker tries to wake another one.
WAKE_TIMEOUT_S: Final = 1.0


class BullMQSlots(Slots):
    """Slots that a job keeps until its end is reported, because the end also fetches the next."""

    def mark_finishing(self, task: asyncio.Task[Any] | None) -> None:
        """Keep the slot occupied."""


class BullMQReader:
    """Locks the next job when a slot is free. Usually the end of a job locks the next one already.

    A marker in Redis shows that there may be jobs. The worker that pops it takes a job; the script
    puts the marker back while there are more.
    """

    def __init__(
        self,
        client: ScriptClient,
        blocking: CommandClient,
        scripts: QueueScripts,
        slots: Slots,
        start: Callable[[LockedJob], None],
        is_known: Callable[[str], bool],
        drain_delay_s: float,
    ) -> None:
        self._client = client
        self._blocking = blocking
        self._scripts = scripts
        self._slots = slots
        self._start = start
        self._is_known = is_known
        self._token = uuid.uuid4().hex
        self._block_s = drain_delay_s
        self._tokens = map(f"{self._token}:{{}}".format, itertools.count(1))
        self._stopping = False
        self._stop_event = asyncio.Event()
        #: When the next delayed job is due, Unix milliseconds; 0 if unknown.
        self._due_ms = 0.0
        self._limited_until = 0.0
        #: A pop of the marker in progress, perhaps since an earlier call of `_wait`.
        self._popping: asyncio.Future[Any] | None = None
        #: True if a job may be locked with a token of this reader without being known here.
        self._unsure = False
        self._adopting: asyncio.Task[None] | None = None
        #: Reads that failed.
        self.errors = 0

    @property
    def stopping(self) -> bool:
        return self._stopping

    def may_fetch(self) -> bool:
        """True if the end of a job may lock the next one."""
        return not self._stopping and not self._slots.suspended

    async def stop(self) -> None:
        """Take no more jobs; `run` returns soon."""
        self._stopping = True
        self._stop_event.set()
        self._slots.interrupt()
        await self._blocking.aclose()  # ends a pop of the marker
        await self._wake_other_worker()

    async def _wake_other_worker(self) -> None:
        """Put a marker back, because this worker may have popped one without acting on it."""
        try:
            marking = self._client.connection.execute_command(
                "ZADD", self._scripts.keys.marker, 0, "0"
            )
            await asyncio.wait_for(marking, WAKE_TIMEOUT_S)
        except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %r; other workers poll by themselves", error)

    async def run(self) -> None:
        """Take jobs until stopped. Errors of Redis are retried, never fatal."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            try:
                await self.run_once()
                pause_s = FIRST_PAUSE_S
                continue
            except (RedisError, *TRANSIENT_ERRORS) as error:
                if self.stopping:  # `stop` has closed the connection
                    return
                self.errors += 1
                self._unsure = True
                log.warning("redis: %s; reading again in %.2f s", error, pause_s)
            except Exception:
                log.exception("read failed unexpectedly; reading again in %.2f s", pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def run_once(self) -> None:
        """Wait for a slot, take a job if there is one, otherwise wait for one."""
        if not await self._slots.wait_free() or self._stopping:
            return
        if self._unsure:
            await self.adopt_locked()
        token = next(self._tokens)
        reply = await self._client.call(self._scripts.take(token))
        if not self.start_locked(reply, token):
            await self._wait()

    def start_locked(self, reply: list[Any], token: str) -> bool:
        """Start the job in a script's reply, which is locked with `token`; False if there is
        none."""
        pairs, job_id, limit_ms, due_ms = (*reply, 0, 0)[:4]
        if limit_ms and limit_ms > 0:
            self._limited_until = time.monotonic() + limit_ms / 1000
        self._due_ms = float(due_ms or 0)
        if not pairs:
            return False
        self._start(LockedJob.from_hash(pairs, codec.decode_text(job_id), token))
        return True

    def mark_unsure(self) -> None:
        """A reply of Redis was lost, and with it perhaps a job that it had locked."""
        self._unsure = True
        if self._adopting is None or self._adopting.done():
            self._adopting = asyncio.ensure_future(self._adopt_soon())

    async def _adopt_soon(self) -> None:
        try:
            await self.adopt_locked()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %s; jobs of lost replies are adopted later", error)

    async def adopt_locked(self) -> None:
        """Start the jobs that are locked with a token of this reader but not known here.

        The reply that locked them was lost with its connection. Without this, such a job would wait
        until its lock has expired and two stall checks have seen that. Replies arrive in order, so
        every job that was locked before this read, and whose reply is not lost, is known by now.
        """
        keys, execute = self._scripts.keys, self._client.connection.execute_command
        active = await execute("LRANGE", keys.key("active"), 0, -1)
        ids = [codec.decode_text(job_id) for job_id in active]
        self._unsure = False
        unknown = [job_id for job_id in ids if not self._is_known(job_id)]
        if not unknown:
            return
        tokens = await execute("MGET", *(keys.lock(job_id) for job_id in unknown))
        for job_id, token in zip(
            unknown, map(codec.decode_text, (token or b"" for token in tokens))
        ):
            if not token.startswith(self._token) or self._is_known(job_id):
                continue
            pairs = await execute("HGETALL", keys.job(job_id))
            if pairs and not self._is_known(job_id):
                log.info("job %s adopted: the reply that locked it was lost", job_id)
                self._start(LockedJob.from_hash(pairs, job_id, token))

    async def _wait(self) -> None:
        """Wait until there may be a job.

        The time of the next delayed job is measured here, because an idle server ends a blocking
        command up to a tenth of a second late.
        """
        limited_s = self._limited_until - time.monotonic()
        if limited_s > 0:
            await self._pause(limited_s)
            return
        while not self._stopping:
            popping = self._popping or self._pop()
            stopped = asyncio.ensure_future(self._stop_event.wait())
            await asyncio.wait(
                {popping, stopped}, timeout=self._wait_s(), return_when=asyncio.FIRST_COMPLETED
            )
            stopped.cancel()
            if not popping.done():
                return
            self._popping = None
            popped = popping.result()
            if popped is None:
                return
            self._due_ms = float(popped[2])
            if self._due_ms <= now_ms():
                return

    def _pop(self) -> asyncio.Future[Any]:
        self._popping = popping = asyncio.ensure_future(
            self._blocking.execute_command("BZPOPMIN", self._scripts.keys.marker, self._block_s)
        )
        popping.add_done_callback(self._popped)
        return popping

    def _popped(self, popping: asyncio.Future[Any]) -> None:
        """Put the marker back if no slot is free, so that another worker can take the job."""
        if popping.cancelled() or popping.exception() is not None or popping.result() is None:
            return
        if self._stopping or self._slots.free <= 0:
            if self._popping is popping:
                self._popping = None
            _, member, score = popping.result()
            back = self._client.connection.execute_command(
                "ZADD", self._scripts.keys.marker, score, member
            )
            returning = asyncio.ensure_future(back)
            returning.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _wait_s(self) -> float:
        if not self._due_ms:
            return self._block_s
        return min(max(self._due_ms / 1000 - time.time(), SHORTEST_WAIT_S), self._block_s)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop_event.wait(), min(seconds, self._block_s))
        except asyncio.TimeoutError:
            return
