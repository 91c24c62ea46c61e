"""Vector index in a Redis vector set (8.0 or later): shared by all workers, one byte per number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

import orjson
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from sluice.worker.features.rag.vectors.base import (
    FLOAT_BYTES,
    DimensionMismatch,
    PackedVectors,
    VectorMatch,
    pack_vectors,
)

#: Commands per pipeline; Redis serves other clients in between.
BATCH_SIZE: Final = 64
#: Minimum search effort (EF) of Redis. A higher value finds more and takes longer.
SEARCH_EFFORT: Final = 200
#: Parts of Redis' errors for an unknown command, and for a vector of the wrong length.
_UNKNOWN: Final = "unknown command"
_MISMATCH: Final = "dimension"
#: Attributes of a document's first chunk: an upper bound of the number of its chunks, and whether
#: all of them are stored.
_SIZE: Final = "n"
_WHOLE: Final = "whole"

Command = tuple[Any, ...]


async def has_vector_sets(redis: Redis, key: str) -> bool:
    """True if Redis has vector sets and the ACL allows them on `key`. Changes nothing."""
    harmless: tuple[Command, ...] = (
        ("VADD", key, "VALUES", 0, "-"),  # refused: a vector has at least one dimension
        ("VREM", key, "-"),
        ("VSIM", key, "ELE", "-"),
        ("VCARD", key),
        ("VGETATTR", key, "-"),
        ("VSETATTR", key, "-", ""),
    )
    for reply in await _send(redis, harmless):
        unknown = isinstance(reply, ResponseError) and _UNKNOWN in str(reply)
        if unknown or isinstance(reply, NoPermissionError):
            return False
    return True


class RedisVectorIndex:
    """Implements `VectorIndex`. Search is approximate, on quantised vectors.

    An interrupted change is completed by the next `add` or `remove` of the document.
    """

    shared = True

    def __init__(self, redis: Redis, key: str) -> None:
        self._redis = redis
        self._key = key

    async def add(self, document_id: str, rows: PackedVectors) -> None:
        new, old = rows.rows, await self._size(document_id)
        if not new:
            await self.remove(document_id)
            return
        length = FLOAT_BYTES * rows.dimensions
        blobs = [rows.data[at : at + length] for at in range(0, new * length, length)]
        # During the change, the first chunk has an upper bound of the chunks, so that none is
        # orphaned.
        changing = orjson.dumps({_SIZE: max(new, old)})
        whole = orjson.dumps({_SIZE: new, _WHOLE: True})
        await self._run([(*self._put(document_id, 0, blobs[0]), "SETATTR", changing)])
        await self._run([self._put(document_id, at, blobs[at]) for at in range(1, new)])
        await self._run([self._drop(document_id, at) for at in range(new, old)])
        await self._run([("VSETATTR", self._key, _element(document_id, 0), whole)])

    async def remove(self, document_id: str) -> None:
        size = await self._size(document_id)
        # The first chunk goes last, because it has the number of chunks.
        await self._run([self._drop(document_id, at) for at in reversed(range(size))])

    async def existing(self, document_ids: Sequence[str]) -> set[str]:
        attributes = await self._attributes(document_ids)
        return {document_id for document_id, each in attributes.items() if each.get(_WHOLE)}

    async def search(self, vector: Sequence[float], k: int) -> list[VectorMatch]:
        if k <= 0:
            return []
        blob = pack_vectors([vector]).data
        effort = max(SEARCH_EFFORT, 2 * k)
        [reply] = await self._run(
            [("VSIM", self._key, "FP32", blob, "WITHSCORES", "COUNT", k, "EF", effort)]
        )
        found = []
        for element, score in zip(reply[::2], reply[1::2]):
            document_id, _, chunk = element.decode().rpartition(":")
            # Redis returns 1 for the same direction and 0 for the opposite one.
            found.append(VectorMatch(document_id, int(chunk), 2 * float(score) - 1))
        return found

    async def count(self) -> int:
        [count] = await self._run([("VCARD", self._key)])
        return int(count)

    async def clear(self) -> None:
        await self._redis.unlink(self._key)

    async def _size(self, document_id: str) -> int:
        """Upper bound of the document's chunks."""
        attributes = await self._attributes([document_id])
        return int(attributes[document_id].get(_SIZE, 0))

    async def _attributes(self, document_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Attributes of the first chunk of each document; empty if there is none."""
        replies = await self._run(
            [("VGETATTR", self._key, _element(document_id, 0)) for document_id in document_ids]
        )
        return {
            document_id: orjson.loads(reply) if reply else {}
            for document_id, reply in zip(document_ids, replies)
        }

    def _put(self, document_id: str, chunk: int, blob: bytes) -> Command:
        # CAS: the search for neighbours does not block other clients.
        return ("VADD", self._key, "FP32", blob, _element(document_id, chunk), "CAS", "Q8")

    def _drop(self, document_id: str, chunk: int) -> Command:
        return ("VREM", self._key, _element(document_id, chunk))

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        """Replies to the commands; raises the first error."""
        waiting, replies = iter(commands), []
        while batch := list(islice(waiting, BATCH_SIZE)):
            for reply in await _send(self._redis, batch):
                if isinstance(reply, ResponseError) and _MISMATCH in str(reply):
                    raise DimensionMismatch(str(reply))
                if isinstance(reply, Exception):
                    raise reply
                replies.append(reply)
        return replies


async def _send(redis: Redis, commands: Iterable[Command]) -> list[Any]:
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return await pipeline.execute(raise_on_error=False)


def _element(document_id: str, chunk: int) -> str:
    return f"{document_id}:{chunk}"
