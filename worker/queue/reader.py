"""Reads new messages from the queue, never more than there are free slots."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sluice.common.jobs.store import WorkerIdentity
from sluice.common.redis.batching import MAX_BACKOFF_S
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import CommandClient
from sluice.worker.monitoring.counters import Counters
from sluice.worker.queue.admission import Admission
from sluice.worker.queue.fair_share import Share
from sluice.worker.queue.messages import Message, is_reclaimed, parse_message
from sluice.worker.queue.prefetch import PiggybackFetch
from sluice.worker.queue.slots import Slots

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
#: Seconds that reading pauses while too many messages wait for a slot of their task.
_PAUSE_S = 0.05
#: The first Redis version whose XREADGROUP can also claim messages of other consumers.
_MIN_CLAIM_VERSION = (8, 4)
_VERSION = re.compile(rb"redis_version:(\d+)\.(\d+)")


class Reader:
    """Reads for the consumer group on its own connection, which blocks while it waits.

    A message that was read without a free slot would age in the pending list, and other workers
    would claim it. So a read asks for no more messages than there are free slots.
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
        #: Set if the readers of other queues share the slots.
        self._share = share
        self._prefetch = prefetch
        self._prepared = False
        self._claim: tuple[str | int, ...] = ()
        self._stopping = False

    def stop(self) -> None:
        """Read no more. `run` returns within one block time."""
        self._stopping = True
        self._slots.interrupt()
        self._prefetch.wake()

    async def run(self) -> None:
        """Read and start messages until stopped. Errors of Redis are retried, never fatal."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping:
            try:
                await self.run_once()
                backoff_s = _FIRST_BACKOFF_S
                continue
            except ResponseError as error:
                self._prepared = False
                log.warning("cannot read %s: %s; checking its group", self._queue, error)
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; reading again in %.1f s", error, backoff_s)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    async def run_once(self) -> int:
        """Wait for a slot, read once and start the messages; returns how many."""
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
        """Wait for messages in Redis, without reserving slots for them."""
        self._prefetch.deactivate()
        messages = await self._read(count)
        if share is not None:
            share.charge(len(messages))
        if messages:
            self._prefetch.record_read(messages, count)
            self._admission.offer(messages)
        return len(messages)

    async def _read_share(self, share: Share) -> int:
        """Read no more than this queue's fair share of the slots."""
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
        """The queue has a backlog: wait for reserved slots, then read without blocking."""
        messages: list[Message] = []
        reservation = await share.reserve(self._count)
        try:
            if reservation is not None and not self._stopping:
                messages = await self._read(reservation.count, block=False)
                self._prefetch.record_read(messages, reservation.count)
        except BaseException:
            self._prefetch.deactivate()  # no reader waits for a queue that cannot be read
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
        if self._claim:  # then each entry has its number of deliveries
            pairs = zip(reply[0][1], messages)
            self._counters.record_reclaimed(
                message.task for entry, message in pairs if is_reclaimed(entry)
            )
        return messages

    async def ensure_group(self) -> None:
        """Create the group if it does not exist, to read from the stream's beginning."""
        try:
            await self._connection.execute_command(
                "XGROUP", "CREATE", self._queue, self._worker.group, "0", "MKSTREAM"
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _claim_option(self) -> tuple[str | int, ...]:
        """The option of XREADGROUP that also claims messages whose lease expired; empty if the
        server does not have it."""
        try:
            info = await self._connection.execute_command("INFO", "server")
        except ResponseError:  # not permitted by the ACL
            return ()
        found = _VERSION.search(info) if isinstance(info, bytes) else None
        if found is None or (int(found[1]), int(found[2])) < _MIN_CLAIM_VERSION:
            return ()
        return "CLAIM", self._worker.lease_ms
