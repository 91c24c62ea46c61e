"""A line to each partition: the names of its keys, and a client of the server that has them.

A single partition has one line, and so have today's client and names. Where one server has all
partitions they share a client; on a Cluster each has its own, which finds the partition's server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from common.addresses import for_tag
from common.connection import async_client
from common.contracts.jobs import JobKeys
from common.errors import SluiceError
from common.partitions import HOME, Partitions
from common.pipelines import replies_of
from common.store import read

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Line:
    """One partition: its number, its names, and how to reach it."""

    number: int
    keys: JobKeys
    client: Redis
    #: Those that jobs may be in beside the normal one.
    lanes: tuple[str, ...] = ()


#: Puts a question about a job, which is one command, into a pipeline.
AskJob = Callable[[Pipeline, Line, str], object]


@dataclass(frozen=True)
class Lines:
    """Every partition's line, in the order of their numbers."""

    partitions: Partitions
    each: tuple[Line, ...]

    @classmethod
    def over(
        cls, partitions: Partitions, url: str, *, connections: int, lanes: tuple[str, ...] = ()
    ) -> Lines:
        """Clients to wherever the URL leads; none is connected before it is used."""
        clients: dict[str, Redis] = {}
        found: list[Line] = []
        for number, keys in enumerate(partitions.keys):
            own = for_tag(url, keys.tag)
            if own not in clients:
                clients[own] = async_client(own, connections=connections)
            found.append(Line(number, keys, clients[own], lanes))
        return cls(partitions, tuple(found))

    @classmethod
    def of_one(cls, client: Redis, partitions: Partitions) -> Lines:
        """Of one server that has all of them."""
        pairs = enumerate(partitions.keys)
        return cls(partitions, tuple(Line(number, keys, client) for number, keys in pairs))

    @property
    def home(self) -> Line:
        """Where everything is that there is one of."""
        return self.each[HOME]

    def of_job(self, job_id: str) -> Line:
        """The line of the partition that a job belongs to."""
        return self.each[self.partitions.number(job_id)]

    def __iter__(self) -> Iterator[Line]:
        return iter(self.each)

    def __len__(self) -> int:
        return len(self.each)

    async def ask(self, question: Callable[[Line], Awaitable[Answer]]) -> list[Answer]:
        """Every partition's answer, in their order; raises what one of them raises."""
        if len(self.each) == 1:
            return [await question(self.home)]
        return await asyncio.gather(*(question(line) for line in self.each))

    def shares(self, job_ids: Iterable[str]) -> list[tuple[Line, list[str]]]:
        """The jobs by the partitions that they belong to, each in its order."""
        if len(self.each) == 1:
            ids = list(job_ids)
            return [(self.home, ids)] if ids else []
        found: dict[int, list[str]] = {}
        for job_id in job_ids:
            found.setdefault(self.partitions.number(job_id), []).append(job_id)
        return [(self.each[number], ids) for number, ids in found.items()]

    async def of_each(self, job_ids: Sequence[str], ask: AskJob) -> list[Any]:
        """What Redis replies of each job, in their order, in one round trip to each server; what it
        refuses is an exception among them, and so is all of a server that does not answer. Raises
        StoreUnavailable where none does."""
        by_client: dict[Redis, list[tuple[Line, str]]] = {}
        for line, ids in self.shares(job_ids):
            by_client.setdefault(line.client, []).extend((line, job_id) for job_id in ids)

        async def of_client(client: Redis, wanted: Sequence[tuple[Line, str]]) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for line, job_id in wanted:
                    ask(pipe, line, job_id)
                replies: list[Any] = await read(replies_of(pipe))
            return replies

        if len(by_client) == 1 and len(self.each) == 1:
            return await of_client(self.home.client, by_client[self.home.client])
        pages = await answered(*(of_client(*each) for each in by_client.items()))
        found: dict[str, Any] = {}
        for wanted, replies in zip(by_client.values(), pages):
            each = [replies] * len(wanted) if isinstance(replies, SluiceError) else replies
            found |= {job_id: reply for (_, job_id), reply in zip(wanted, each)}
        return [found[job_id] for job_id in job_ids]

    async def aclose(self) -> None:
        """Hang up."""
        for client in dict.fromkeys(line.client for line in self.each):
            await client.aclose()


async def answered(*questions: Awaitable[Answer]) -> list[Answer | SluiceError]:
    """The answers, with the trouble in the place of those that there are none of; raises it where
    there is not one."""
    found = await asyncio.gather(*questions, return_exceptions=True)
    troubles: list[SluiceError] = []
    for each in found:
        if isinstance(each, SluiceError):
            troubles.append(each)
        elif isinstance(each, BaseException):
            raise each
    if troubles and len(troubles) == len(found):
        raise troubles[0]
    return cast("list[Answer | SluiceError]", found)
