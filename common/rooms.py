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
from common.coalescer import Coalescer
from common.contracts.jobs import WAITING_ROOM
from common.contracts.scripts import Operation
from common.scripts import Argument, Record
from common.wire import Commander

#: Messages that one KEEP looks at.
KEEP_PAGE = 200


class Taken(NamedTuple):
    """A message from a waiting room, as it lies on the queue: its id, fields and values in turn."""

    id: str
    texts: Sequence[bytes]


class Rooms:
    """The waiting rooms of a consumer group."""

    def __init__(self, wire: Commander, queue: str, group: str, coalescer: Coalescer) -> None:
        self._wire = wire
        self._queue = queue
        self._group = group
        self._coalescer = coalescer

    async def put(self, task: str, message_ids: Sequence[str]) -> None:
        """Let messages wait that are ours."""
        await self._wire.execute_command(
            "XCLAIM", self._queue, self._group, room_of(task), 0, *message_ids, "JUSTID"
        )

    async def count(self) -> dict[str, int]:
        """How many wait, by task; those of whom nobody waits are left out."""
        try:
            summary: Any = await self._wire.execute_command("XPENDING", self._queue, self._group)
        except ResponseError as error:
            if str(error).startswith(("NOGROUP", "WRONGTYPE")):
                return {}  # the reader makes a group, and complains
            raise
        consumers = ((codec.text(name), int(number)) for name, number in summary[3] or ())
        return {
            name[len(WAITING_ROOM) :]: number
            for name, number in consumers
            if name.startswith(WAITING_ROOM)
        }

    async def take(self, tasks: Iterable[str], consumer: str, most: int) -> list[Taken]:
        """The oldest messages that wait for these tasks; the consumer's from now on."""
        args: list[Argument] = [self._group, consumer, most, *map(room_of, tasks)]
        reply = await self._coalescer.call(Record(Operation.TAKE.value, (), args))
        taken: list[Taken] = []
        at, flat = 0, reply.more
        while at < len(flat):
            texts = int(flat[at + 1])
            taken.append(Taken(codec.text(flat[at]), flat[at + 2 : at + 2 + texts]))
            at += 2 + texts
        return taken

    async def keep(self, task: str, after: str = "") -> list[str]:
        """Look after a page of those who wait, from the oldest or after an id; returns theirs."""
        start = f"({after}" if after else "-"
        args = (self._group, room_of(task), start, KEEP_PAGE)
        reply = await self._coalescer.call(Record(Operation.KEEP.value, (), args))
        return [codec.text(message_id) for message_id in reply.more]


def room_of(task: str) -> str:
    """The consumer's name under which a task's messages wait."""
    return f"{WAITING_ROOM}{task}"
