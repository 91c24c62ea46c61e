"""Takes new messages from the queue, never more than can run at once."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import Any

from redis.exceptions import RedisError, ResponseError

from common.jobs.store import WorkerIdentity
from common.redis.batching import MAX_BACKOFF_S
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.pipelined import CommandClient
from worker.monitoring.counters import Counters
from worker.queue.admission import Admission
from worker.queue.fair_share import Share
from worker.queue.messages import Message, is_reclaimed, parse_message
from worker.queue.prefetch import PiggybackFetch
from worker.queue.slots import Slots

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
#: How long reading pauses while too many messages wait for a place of their task.
_PAUSE_S = 0.05
#: The first server whose reads can also claim what other workers left.
_MIN_CLAIM_VERSION = (8, 4)
_VERSION = re.compile(rb"redis_version:(\d+)\.(\d+)")


class Reader:
    """Reads for the group on a connection of its own, so that waiting blocks nobody else.

    A message that was read but has no free slot would age in the pending list and look dead to
    other workers, so a read asks for no more messages than there are free slots.
    """

    def __init__(
        self,
        connection: CommandClient,
        queue: str,
        worker: WorkerIdentity,
        slots: Slots,
        admission: Admission,
        count: int,
        block_ms: int,
        counters: Counters | None = None,
        share: Share | None = None,
        *,
        prefetch: PiggybackFetch,
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._admission = admission
        self._count = count
        self._block_ms = block_ms
        self._counters = Counters() if counters is None else counters
        #: Where other queues have readers too, and want the same places.
        self._share = share
        #: Who else takes messages, while there are many: as long as reads find all they ask for.
        self._prefetch = prefetch
        self._prepared = False
        self._claim: tuple[str | int, ...] = ()
        self._stopping = False

    def stop(self) -> None:
        """Read no more; `run` returns within one block time."""
        self._stopping = True
        self._slots.interrupt()
        self._prefetch.wake()

    async def run(self) -> None:
        """Read and start messages until stopped; Redis trouble is waited out, never fatal."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping:
            try:
                await self.run_once()
                backoff_s = _FIRST_BACKOFF_S
                continue
            except ResponseError as error:
                self._prepared = False
                log.warning("cannot read %s: %s; making sure of the group", self._queue, error)
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; reading again in %.1f s", error, backoff_s)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    async def run_once(self) -> int:
        """Wait for a slot, read once, start what came; returns how many."""
        if not self._prepared:
            await self.ensure_group()
            self._claim = await self._claim_option()
            self._prepared = True
        if self._share is not None:
            return await self._read_share(self._share)
        free = await self._wait_free()
        if self._stopping or not free or await self._is_closed():
            return 0
        return await self._read_all(min(free, self._count))

    async def _wait_free(self) -> int:
        free = await self._slots.wait_free()
        while self._prefetch.busy and not self._stopping:
            await self._prefetch.wait_change()
            free = await self._slots.wait_free()
        return free

    async def _is_closed(self) -> bool:
        if self._admission.accepting:
            return False
        await asyncio.sleep(_PAUSE_S)
        return True

    async def _read_all(self, count: int, share: Share | None = None) -> int:
        """Wait for messages in Redis, for places that are free but not held."""
        self._prefetch.deactivate()
        messages = await self._read(count)
        if share is not None:
            share.charge(len(messages))
        if messages:
            self._prefetch.record_read(messages, count)
            self._admission.offer(messages)
        return len(messages)

    async def _read_share(self, share: Share) -> int:
        """The same, with no more than this queue's share of the places."""
        while self._prefetch.busy and not self._stopping:
            await self._prefetch.wait_change()
        if self._prefetch.active and self._admission.accepting:
            return await self._read_more(share)
        share.mark_idle()
        if await self._is_closed():
            return 0
        count = min(await share.wait_for_slot(), self._count)
        if self._stopping or not count:
            return 0
        return await self._read_all(count, share)

    async def _read_more(self, share: Share) -> int:
        """There may be more: then do not wait for it in Redis, but for places here."""
        messages: list[Message] = []
        reservation = await share.reserve(self._count)
        try:
            if reservation is not None and not self._stopping:
                messages = await self._read(reservation.count, block=False)
                self._prefetch.record_read(messages, reservation.count)
        except BaseException:
            self._prefetch.deactivate()  # nobody waits for a queue that cannot be read
            raise
        finally:
            share.release(reservation, len(messages))
        if messages:
            self._admission.offer(messages)
        return len(messages)

    async def _read(self, count: int, *, block: bool = True) -> list[Message]:
        worker = self._worker
        waiting = ("BLOCK", self._block_ms) if block else ()
        reply: Any = await self._connection.execute_command(
            "XREADGROUP", "GROUP", worker.group, worker.consumer,
            "COUNT", count, *waiting, *self._claim, "STREAMS", self._queue, ">",
        )  # fmt: skip
        if not reply:
            return []
        messages = [parse_message(entry) for entry in reply[0][1]]
        if self._claim:  # each entry also says how often it was handed out before
            pairs = zip(reply[0][1], messages)
            self._counters.record_reclaimed(
                taken.task for entry, taken in pairs if is_reclaimed(entry)
            )
        return messages

    async def ensure_group(self) -> None:
        """Create the group if need be, from the stream's beginning: older messages count."""
        try:
            await self._connection.execute_command(
                "XGROUP", "CREATE", self._queue, self._worker.group, "0", "MKSTREAM"
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _claim_option(self) -> tuple[str | int, ...]:
        """Where the server can, a read also takes over messages of silent workers."""
        try:
            info = await self._connection.execute_command("INFO", "server")
        except ResponseError:  # not allowed to ask
            return ()
        found = _VERSION.search(info) if isinstance(info, bytes) else None
        if found is None or (int(found[1]), int(found[2])) < _MIN_CLAIM_VERSION:
            return ()
        return "CLAIM", self._worker.lease_ms
