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

from common.contracts.jobs import JobKeys
from common.errors import SluiceError
from common.jobs.store import read_reply
from common.redis.addresses import url_for_tag
from common.redis.connection import async_client, execute_pipeline
from common.redis.partitions import HOME_PARTITION, Partitions

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PartitionClient:
    """One partition: its number, its names, and how to reach it."""

    number: int
    keys: JobKeys
    client: Redis
    #: Those that jobs may be in beside the normal one.
    lanes: tuple[str, ...] = ()


#: Puts a question about a job, which is one command, into a pipeline.
JobQuery = Callable[[Pipeline, PartitionClient, str], object]


@dataclass(frozen=True)
class PartitionClients:
    """Every partition's line, in the order of their numbers."""

    partitions: Partitions
    clients: tuple[PartitionClient, ...]

    @classmethod
    def connect(
        cls, partitions: Partitions, url: str, *, connections: int, lanes: tuple[str, ...] = ()
    ) -> PartitionClients:
        """Clients to wherever the URL leads; none is connected before it is used."""
        clients: dict[str, Redis] = {}
        found: list[PartitionClient] = []
        for number, keys in enumerate(partitions.keys):
            own = url_for_tag(url, keys.tag)
            if own not in clients:
                clients[own] = async_client(own, connections=connections)
            found.append(PartitionClient(number, keys, clients[own], lanes))
        return cls(partitions, tuple(found))

    @classmethod
    def on_one_server(cls, client: Redis, partitions: Partitions) -> PartitionClients:
        """Of one server that has all of them."""
        pairs = enumerate(partitions.keys)
        return cls(
            partitions, tuple(PartitionClient(number, keys, client) for number, keys in pairs)
        )

    @property
    def home(self) -> PartitionClient:
        """Where everything is that there is one of."""
        return self.clients[HOME_PARTITION]

    def for_job(self, job_id: str) -> PartitionClient:
        """The line of the partition that a job belongs to."""
        return self.clients[self.partitions.number(job_id)]

    def __iter__(self) -> Iterator[PartitionClient]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    async def ask(self, question: Callable[[PartitionClient], Awaitable[Answer]]) -> list[Answer]:
        """Every partition's answer, in their order; raises what one of them raises."""
        if len(self.clients) == 1:
            return [await question(self.home)]
        return await asyncio.gather(*(question(line) for line in self.clients))

    def group_jobs(self, job_ids: Iterable[str]) -> list[tuple[PartitionClient, list[str]]]:
        """The jobs by the partitions that they belong to, each in its order."""
        if len(self.clients) == 1:
            ids = list(job_ids)
            return [(self.home, ids)] if ids else []
        found: dict[int, list[str]] = {}
        for job_id in job_ids:
            found.setdefault(self.partitions.number(job_id), []).append(job_id)
        return [(self.clients[number], ids) for number, ids in found.items()]

    async def query_jobs(self, job_ids: Sequence[str], ask: JobQuery) -> list[Any]:
        """What Redis replies of each job, in their order, in one round trip to each server; what it
        refuses is an exception among them, and so is all of a server that does not answer. Raises
        StoreUnavailable where none does."""
        by_client: dict[Redis, list[tuple[PartitionClient, str]]] = {}
        for line, ids in self.group_jobs(job_ids):
            by_client.setdefault(line.client, []).extend((line, job_id) for job_id in ids)

        async def of_client(
            client: Redis, wanted: Sequence[tuple[PartitionClient, str]]
        ) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for line, job_id in wanted:
                    ask(pipe, line, job_id)
                replies: list[Any] = await read_reply(execute_pipeline(pipe))
            return replies

        if len(by_client) == 1 and len(self.clients) == 1:
            return await of_client(self.home.client, by_client[self.home.client])
        pages = await gather_partial(*(of_client(*each) for each in by_client.items()))
        found: dict[str, Any] = {}
        for wanted, replies in zip(by_client.values(), pages):
            each = [replies] * len(wanted) if isinstance(replies, SluiceError) else replies
            found |= {job_id: reply for (_, job_id), reply in zip(wanted, each)}
        return [found[job_id] for job_id in job_ids]

    async def aclose(self) -> None:
        for client in dict.fromkeys(line.client for line in self.clients):
            await client.aclose()


async def gather_partial(*questions: Awaitable[Answer]) -> list[Answer | SluiceError]:
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
