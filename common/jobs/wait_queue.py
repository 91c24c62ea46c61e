"""Wait queues: per task, the messages of jobs that no worker may start because of a limit.

A wait queue is a consumer of the group without a process. Its messages stay pending, and any worker
with a free slot may take the oldest. Workers touch them at intervals, so that they are not mistaken
for messages of a dead worker. If all workers die, they are recovered like those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from sluice.common import codec
from sluice.common.contracts.jobs import WAIT_QUEUE_PREFIX
from sluice.common.contracts.queue import Operation
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import Argument, Record

#: Messages that one TOUCH_WAITING handles.
TOUCH_PAGE_SIZE = 200


class WaitingMessage(NamedTuple):
    """A message from a wait queue: its id, and its fields and values in turn."""

    id: str
    fields: Sequence[bytes]


class WaitQueues:
    """The wait queues of a consumer group."""

    def __init__(self, wire: CommandClient, queue: str, group: str, batcher: ScriptBatcher) -> None:
        self._wire = wire
        self._queue = queue
        self._group = group
        self._batcher = batcher

    async def put(self, task: str, message_ids: Sequence[str]) -> None:
        """Move messages of this worker to the wait queue."""
        await self._wire.execute_command(
            "XCLAIM", self._queue, self._group, wait_queue_name(task), 0, *message_ids, "JUSTID"
        )

    async def count(self) -> dict[str, int]:
        """Number of waiting messages by task; tasks without any are left out."""
        try:
            summary: Any = await self._wire.execute_command("XPENDING", self._queue, self._group)
        except ResponseError as error:
            if str(error).startswith(("NOGROUP", "WRONGTYPE")):
                return {}  # the reader creates the group, or reports the error
            raise
        consumers = ((codec.decode_text(name), int(number)) for name, number in summary[3] or ())
        return {
            name[len(WAIT_QUEUE_PREFIX) :]: number
            for name, number in consumers
            if name.startswith(WAIT_QUEUE_PREFIX)
        }

    async def take(self, tasks: Iterable[str], consumer: str, most: int) -> list[WaitingMessage]:
        """Transfer the oldest waiting messages of these tasks to the consumer."""
        args: list[Argument] = [self._group, consumer, most, *map(wait_queue_name, tasks)]
        reply = await self._batcher.call(Record(Operation.TAKE_WAITING.value, (), args))
        taken: list[WaitingMessage] = []
        at, flat = 0, reply.more
        while at < len(flat):
            texts = int(flat[at + 1])
            taken.append(WaitingMessage(codec.decode_text(flat[at]), flat[at + 2 : at + 2 + texts]))
            at += 2 + texts
        return taken

    async def touch(self, task: str, after: str = "") -> list[str]:
        """Reset the idle time of a page of waiting messages, from the oldest or after an id.

        Returns their ids.
        """
        start = f"({after}" if after else "-"
        args = (self._group, wait_queue_name(task), start, TOUCH_PAGE_SIZE)
        reply = await self._batcher.call(Record(Operation.TOUCH_WAITING.value, (), args))
        return [codec.decode_text(message_id) for message_id in reply.more]


def wait_queue_name(task: str) -> str:
    """The consumer name of a task's wait queue."""
    return f"{WAIT_QUEUE_PREFIX}{task}"
