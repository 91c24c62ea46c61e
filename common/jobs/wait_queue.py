"""Waiting rooms: where messages lie that no worker has a place for just now, one for each task.

A room is a consumer of the group that nobody is: its messages stay pending, and any worker that has
a place may take the oldest. They are looked after all the while, so that nobody takes them for
messages of a worker that fell silent; should all workers fall silent, that is what they become.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from common import codec
from common.contracts.jobs import WAIT_QUEUE_PREFIX
from common.contracts.queue import Operation
from common.redis.batching import ScriptBatcher
from common.redis.pipelined import CommandClient
from common.redis.scripts import Argument, Record

#: Messages that one KEEP looks at.
TOUCH_PAGE_SIZE = 200


class WaitingMessage(NamedTuple):
    """A message from a waiting room, as it lies on the queue: its id, fields and values in turn."""

    id: str
    fields: Sequence[bytes]


class WaitQueues:
    """The waiting rooms of a consumer group."""

    def __init__(self, wire: CommandClient, queue: str, group: str, batcher: ScriptBatcher) -> None:
        self._wire = wire
        self._queue = queue
        self._group = group
        self._batcher = batcher

    async def put(self, task: str, message_ids: Sequence[str]) -> None:
        """Let messages wait that are ours."""
        await self._wire.execute_command(
            "XCLAIM", self._queue, self._group, wait_queue_name(task), 0, *message_ids, "JUSTID"
        )

    async def count(self) -> dict[str, int]:
        """How many wait, by task; those of whom nobody waits are left out."""
        try:
            summary: Any = await self._wire.execute_command("XPENDING", self._queue, self._group)
        except ResponseError as error:
            if str(error).startswith(("NOGROUP", "WRONGTYPE")):
                return {}  # the reader makes a group, and complains
            raise
        consumers = ((codec.decode_text(name), int(number)) for name, number in summary[3] or ())
        return {
            name[len(WAIT_QUEUE_PREFIX) :]: number
            for name, number in consumers
            if name.startswith(WAIT_QUEUE_PREFIX)
        }

    async def take(self, tasks: Iterable[str], consumer: str, most: int) -> list[WaitingMessage]:
        """The oldest messages that wait for these tasks; the consumer's from now on."""
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
        """Look after a page of those who wait, from the oldest or after an id; returns theirs."""
        start = f"({after}" if after else "-"
        args = (self._group, wait_queue_name(task), start, TOUCH_PAGE_SIZE)
        reply = await self._batcher.call(Record(Operation.TOUCH_WAITING.value, (), args))
        return [codec.decode_text(message_id) for message_id in reply.more]


def wait_queue_name(task: str) -> str:
    """The consumer's name under which a task's messages wait."""
    return f"{WAIT_QUEUE_PREFIX}{task}"
