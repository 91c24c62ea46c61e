"""Takes new messages from the queue, never more than can run at once."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from redis.exceptions import RedisError, ResponseError

from common.coalescer import MAX_BACKOFF_S
from common.connection import TRANSIENT_ERRORS
from common.store import WorkerIdentity
from common.wire import Commander
from worker.executor import Executor
from worker.intake import Intake, Message
from worker.slots import Slots

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1


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
        intake: Intake,
        executor: Executor,
        count: int,
        block_ms: int,
    ) -> None:
        self._line = line
        self._queue = queue
        self._worker = worker
        self._slots = slots
        self._intake = intake
        self._executor = executor
        self._admitting = Slots(slots.free)
        self._count = count
        self._block_ms = block_ms
        self._has_group = False
        self._stopping = False

    def stop(self) -> None:
        """Read no more; `run` returns within one block time."""
        self._stopping = True
        self._slots.interrupt()

    async def run(self) -> None:
        """Read and start messages until stopped; Redis trouble is waited out, never fatal."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping:
            try:
                await self.run_once()
                backoff_s = _FIRST_BACKOFF_S
                continue
            except ResponseError as error:
                self._has_group = False
                log.warning("cannot read %s: %s; making sure of the group", self._queue, error)
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; reading again in %.1f s", error, backoff_s)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    async def settle(self, timeout_s: float) -> bool:
        """Wait until every message that was read is running or settled; False when time is up."""
        return await self._admitting.wait_idle(timeout_s)

    async def cancel(self) -> None:
        """Give up on messages that were read but do not run yet; they stay pending."""
        await self._admitting.cancel()

    async def run_once(self) -> int:
        """Wait for a slot, read once, start what came; returns how many."""
        if not self._has_group:
            await self.ensure_group()
            self._has_group = True
        free = await self._slots.wait_free()
        if self._stopping or not free:
            return 0
        messages = await self._read(min(free, self._count))
        if messages:
            self.offer(messages)
        return len(messages)

    def offer(self, messages: list[Message]) -> None:
        """Run messages that fit into the free slots, however they were come by."""
        self._slots.reserve(len(messages))
        self._admitting.start(self._admit(messages))

    async def _admit(self, messages: list[Message]) -> None:
        try:
            attempts = await self._intake.admit(messages)
        finally:
            self._slots.release(len(messages))
        for attempt in attempts:
            self._slots.start(self._executor.run(attempt))

    async def _read(self, count: int) -> list[Message]:
        worker = self._worker
        reply: Any = await self._line.execute_command(
            "XREADGROUP", "GROUP", worker.group, worker.consumer,
            "COUNT", count, "BLOCK", self._block_ms, "STREAMS", self._queue, ">",
        )  # fmt: skip
        return [message(entry) for entry in reply[0][1]] if reply else []

    async def ensure_group(self) -> None:
        """Create the group if need be, from the stream's beginning: older messages count."""
        try:
            await self._line.execute_command(
                "XGROUP", "CREATE", self._queue, self._worker.group, "0", "MKSTREAM"
            )
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise


def message(entry: tuple[bytes, list[bytes] | None]) -> Message:
    """A stream entry as Redis wrote it; one that was deleted meanwhile has no fields."""
    entry_id, flat = entry
    return Message(entry_id.decode(), dict(zip(flat[::2], flat[1::2])) if flat else {})
