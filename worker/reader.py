"""Takes new messages from the queue, never more than can run at once."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import Any

from redis.exceptions import RedisError, ResponseError

from common.coalescer import MAX_BACKOFF_S
from common.connection import TRANSIENT_ERRORS
from common.store import WorkerIdentity
from common.wire import Commander
from worker.admission import Admission
from worker.messages import Message, is_reclaimed, message
from worker.riding import Riding
from worker.slots import Slots
from worker.tally import Tally
from worker.turns import Turn

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
#: How long reading pauses while too many messages wait for a place of their task.
_PAUSE_S = 0.05
#: The first server whose reads can also claim what other workers left.
_CLAIMS_SINCE = (8, 4)
_VERSION = re.compile(rb"redis_version:(\d+)\.(\d+)")


class Reader:
    """Reads for the group on a connection of its own, so that waiting blocks nobody else.

    A message that was read but has no free slot would age in the pending list and look dead to
    other workers, so a read asks for no more messages than there are free slots.
    """

    def __init__(
        self,
        line: Commander,
        queue: str,
        worker: WorkerIdentity,
        slots: Slots,
        admission: Admission,
        count: int,
        block_ms: int,
        tally: Tally | None = None,
        turn: Turn | None = None,
        *,
        riding: Riding,
    ) -> None:
        self._line = line
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._admission = admission
        self._count = count
        self._block_ms = block_ms
        self._tally = Tally() if tally is None else tally
        #: Where other queues have readers too, and want the same places.
        self._turn = turn
        #: Who else takes messages, while there are many: as long as reads find all they ask for.
        self._riding = riding
        self._prepared = False
        self._claim: tuple[str | int, ...] = ()
        self._stopping = False

    def stop(self) -> None:
        """Read no more; `run` returns within one block time."""
        self._stopping = True
        self._slots.interrupt()
        self._riding.wake()

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
        if self._turn is not None:
            return await self._read_in_turn(self._turn)
        free = await self._wait_free()
        if self._stopping or not free or await self._is_closed():
            return 0
        return await self._read_all(min(free, self._count))

    async def _wait_free(self) -> int:
        free = await self._slots.wait_free()
        while self._riding.busy and not self._stopping:
            await self._riding.wait_change()
            free = await self._slots.wait_free()
        return free

    async def _is_closed(self) -> bool:
        if self._admission.open:
            return False
        await asyncio.sleep(_PAUSE_S)
        return True

    async def _read_all(self, count: int, turn: Turn | None = None) -> int:
        """Wait for messages in Redis, for places that are free but not held."""
        self._riding.active = False
        messages = await self._read(count)
        if turn is not None:
            turn.pay(len(messages))
        if messages:
            self._riding.found(messages, count)
            self._admission.offer(messages)
        return len(messages)

    async def _read_in_turn(self, turn: Turn) -> int:
        """The same, with no more than this queue's share of the places."""
        while self._riding.busy and not self._stopping:
            await self._riding.wait_change()
        if self._riding.active and self._admission.open:
            return await self._read_on(turn)
        turn.rest()
        if await self._is_closed():
            return 0
        count = min(await turn.look(), self._count)
        if self._stopping or not count:
            return 0
        return await self._read_all(count, turn)

    async def _read_on(self, turn: Turn) -> int:
        """There may be more: then do not wait for it in Redis, but for places here."""
        messages: list[Message] = []
        places = await turn.take(self._count)
        try:
            if places is not None and not self._stopping:
                messages = await self._read(places.count, block=False)
                self._riding.found(messages, places.count)
        except BaseException:
            self._riding.active = False  # nobody waits for a queue that cannot be read
            raise
        finally:
            turn.end(places, len(messages))
        if messages:
            self._admission.offer(messages)
        return len(messages)

    async def _read(self, count: int, *, block: bool = True) -> list[Message]:
        worker = self._worker
        waiting = ("BLOCK", self._block_ms) if block else ()
        reply: Any = await self._line.execute_command(
            "XREADGROUP", "GROUP", worker.group, worker.consumer,
            "COUNT", count, *waiting, *self._claim, "STREAMS", self._queue, ">",
        )  # fmt: skip
        if not reply:
            return []
        messages = [message(entry) for entry in reply[0][1]]
        if self._claim:  # each entry also says how often it was handed out before
            pairs = zip(reply[0][1], messages)
            self._tally.reclaimed(taken.task for entry, taken in pairs if is_reclaimed(entry))
        return messages

    async def ensure_group(self) -> None:
        """Create the group if need be, from the stream's beginning: older messages count."""
        try:
            await self._line.execute_command(
                "XGROUP", "CREATE", self._queue, self._worker.group, "0", "MKSTREAM"
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _claim_option(self) -> tuple[str | int, ...]:
        """Where the server can, a read also takes over messages of silent workers."""
        try:
            info = await self._line.execute_command("INFO", "server")
        except ResponseError:  # not allowed to ask
            return ()
        found = _VERSION.search(info) if isinstance(info, bytes) else None
        if found is None or (int(found[1]), int(found[2])) < _CLAIMS_SINCE:
            return ()
        return "CLAIM", self._worker.lease_ms
