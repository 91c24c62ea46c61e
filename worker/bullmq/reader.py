"""Takes jobs from one queue, never more than can run at once, and waits where there are none."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import RedisError

from common import codec
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.pipelined import CommandClient
from worker.bullmq.job import LockedJob
from worker.bullmq.script_client import FIRST_PAUSE_S, LONGEST_PAUSE_S, ScriptClient
from worker.bullmq.scripts import QueueScripts, now_ms
from worker.queue.slots import Slots

log = logging.getLogger(__name__)

#: However close the next delayed job is: our clock and the one it was delayed by may differ.
SHORTEST_WAIT_S: Final = 0.002
#: How long a worker that stops tries to tell the others.
WAKE_TIMEOUT_S: Final = 1.0


class BullMQSlots(Slots):
    """Places of a queue: a job keeps its own until its end has brought the next one."""

    def mark_finishing(self, task: asyncio.Task[Any] | None) -> None:
        """Nothing is free before that."""


class BullMQReader:
    """Locks the next job whenever a place is free; the end of a job usually brings the next.

    A marker in Redis tells when there may be work. Whoever takes it looks, and what it finds it
    shares: the script puts the marker back while there is more.
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
        #: When the next delayed job is due, Unix milliseconds; 0 for nobody knows.
        self._due_ms = 0.0
        self._limited_until = 0.0
        #: A wait for the marker that is under way, perhaps since an earlier look.
        self._popping: asyncio.Future[Any] | None = None
        #: Whether a job may be locked in our name that we do not know of.
        self._unsure = False
        self._adopting: asyncio.Task[None] | None = None
        #: Looks that Redis had no answer to.
        self.errors = 0

    @property
    def stopping(self) -> bool:
        return self._stopping

    def may_fetch(self) -> bool:
        """Whether a job that ends may bring the next one."""
        return not self._stopping and not self._slots.suspended

    async def stop(self) -> None:
        """Take no more; `run` returns soon."""
        self._stopping = True
        self._stop_event.set()
        self._slots.interrupt()
        await self._blocking.aclose()  # where it waits for a marker, it need not any more
        await self._wake_other_worker()

    async def _wake_other_worker(self) -> None:
        """We may have taken a marker that we do not act on: let another worker look."""
        try:
            marking = self._client.connection.execute_command(
                "ZADD", self._scripts.keys.marker, 0, "0"
            )
            await asyncio.wait_for(marking, WAKE_TIMEOUT_S)
        except (RedisError, asyncio.TimeoutError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %r; other workers look by themselves", error)

    async def run(self) -> None:
        """Take jobs until stopped; Redis trouble is waited out, never fatal."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            try:
                await self.run_once()
                pause_s = FIRST_PAUSE_S
                continue
            except (RedisError, *TRANSIENT_ERRORS) as error:
                if self.stopping:  # it was us who hung up
                    return
                self.errors += 1
                self._unsure = True
                log.warning("redis: %s; looking again in %.2f s", error, pause_s)
            except Exception:
                log.exception("looking for jobs failed unexpectedly; again in %.2f s", pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def run_once(self) -> None:
        """Wait for a place, take a job if there is one, otherwise wait for one."""
        if not await self._slots.wait_free() or self._stopping:
            return
        if self._unsure:
            await self.adopt_locked()
        token = next(self._tokens)
        reply = await self._client.call(self._scripts.take(token))
        if not self.start_locked(reply, token):
            await self._wait()

    def start_locked(self, reply: list[Any], token: str) -> bool:
        """Start the job that a script has locked; whether there was one."""
        pairs, job_id, limit_ms, due_ms = (*reply, 0, 0)[:4]
        if limit_ms and limit_ms > 0:
            self._limited_until = time.monotonic() + limit_ms / 1000
        self._due_ms = float(due_ms or 0)
        if not pairs:
            return False
        self._start(LockedJob.from_hash(pairs, codec.decode_text(job_id), token))
        return True

    def mark_unsure(self) -> None:
        """An answer of Redis was lost that may have brought a job."""
        self._unsure = True
        if self._adopting is None or self._adopting.done():
            self._adopting = asyncio.ensure_future(self._adopt_soon())

    async def _adopt_soon(self) -> None:
        try:
            await self.adopt_locked()
        except (RedisError, *TRANSIENT_ERRORS) as error:
            log.warning("redis: %s; jobs of lost answers are looked for later", error)

    async def adopt_locked(self) -> None:
        """Take up what Redis has locked in our name without our knowledge.

        The answer was lost with its connection, and the job would stand still until its lock has
        run out and somebody has seen that twice. Answers come in order, so whatever was locked
        before this look, and is not lost, is known by now.
        """
        keys, ask = self._scripts.keys, self._client.connection.execute_command
        ids = [
            codec.decode_text(job_id) for job_id in await ask("LRANGE", keys.key("active"), 0, -1)
        ]
        self._unsure = False
        unknown = [job_id for job_id in ids if not self._is_known(job_id)]
        if not unknown:
            return
        tokens = await ask("MGET", *(keys.lock(job_id) for job_id in unknown))
        for job_id, token in zip(
            unknown, map(codec.decode_text, (token or b"" for token in tokens))
        ):
            if not token.startswith(self._token) or self._is_known(job_id):
                continue
            pairs = await ask("HGETALL", keys.job(job_id))
            if pairs and not self._is_known(job_id):
                log.info("job %s is taken up: an answer of Redis was lost", job_id)
                self._start(LockedJob.from_hash(pairs, job_id, token))

    async def _wait(self) -> None:
        """Until there may be a job to take.

        When the next delayed job is due we know ourselves: a server that has nothing else to do
        ends a wait up to a tenth of a second late.
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
        """A marker that comes while we cannot look is for somebody else."""
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
