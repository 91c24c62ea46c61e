"""A client per partition: its key names, and a connection pool to its server.

A single partition uses the plain key names. If one server has all partitions, they share a pool; on
a Cluster each has its own, which locates the partition's server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import SluiceError
from sluice.common.jobs.store import read_reply
from sluice.common.redis.addresses import url_for_tag
from sluice.common.redis.connection import async_client, execute_pipeline
from sluice.common.redis.partitions import HOME_PARTITION, Partitions

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PartitionClient:
    """One partition: its number, key names and Redis client."""

    number: int
    keys: JobKeys
    client: Redis
    #: Lanes in addition to the normal one.
    lanes: tuple[str, ...] = ()


#: Adds one command about a job to a pipeline.
JobQuery = Callable[[Pipeline, PartitionClient, str], object]


@dataclass(frozen=True)
class PartitionClients:
    """The clients of all partitions, by partition number."""

    partitions: Partitions
    clients: tuple[PartitionClient, ...]

    @classmethod
    def connect(
        cls, partitions: Partitions, url: str, *, connections: int, lanes: tuple[str, ...] = ()
    ) -> PartitionClients:
        """Create clients for a URL; they connect on first use."""
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
        """All partitions on one server."""
        pairs = enumerate(partitions.keys)
        return cls(
            partitions, tuple(PartitionClient(number, keys, client) for number, keys in pairs)
        )

    @property
    def home(self) -> PartitionClient:
        """Partition 0, with all singleton data."""
        return self.clients[HOME_PARTITION]

    def for_job(self, job_id: str) -> PartitionClient:
        """The client of the partition that a job belongs to."""
        return self.clients[self.partitions.number(job_id)]

    def __iter__(self) -> Iterator[PartitionClient]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    async def ask(self, question: Callable[[PartitionClient], Awaitable[Answer]]) -> list[Answer]:
        """Query every partition; returns the answers in order, or raises the first error."""
        if len(self.clients) == 1:
            return [await question(self.home)]
        return await asyncio.gather(*(question(client) for client in self.clients))

    def group_jobs(self, job_ids: Iterable[str]) -> list[tuple[PartitionClient, list[str]]]:
        """Group jobs by partition, keeping their order."""
        if len(self.clients) == 1:
            ids = list(job_ids)
            return [(self.home, ids)] if ids else []
        found: dict[int, list[str]] = {}
        for job_id in job_ids:
            found.setdefault(self.partitions.number(job_id), []).append(job_id)
        return [(self.clients[number], ids) for number, ids in found.items()]

    async def query_jobs(self, job_ids: Sequence[str], ask: JobQuery) -> list[Any]:
        """Query each job in one round trip per server; returns the replies in order.

        A refused command gives an exception in place of its reply, and an unavailable server gives
        one for each of its jobs. Raises StoreUnavailable if no server answers.
        """
        by_client: dict[Redis, list[tuple[PartitionClient, str]]] = {}
        for partition, ids in self.group_jobs(job_ids):
            by_client.setdefault(partition.client, []).extend((partition, job_id) for job_id in ids)

        async def of_client(
            client: Redis, jobs: Sequence[tuple[PartitionClient, str]]
        ) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for partition, job_id in jobs:
                    ask(pipe, partition, job_id)
                replies: list[Any] = await read_reply(execute_pipeline(pipe))
            return replies

        if len(by_client) == 1 and len(self.clients) == 1:
            return await of_client(self.home.client, by_client[self.home.client])
        pages = await gather_partial(*(of_client(*each) for each in by_client.items()))
        found: dict[str, Any] = {}
        for jobs, replies in zip(by_client.values(), pages):
            each = [replies] * len(jobs) if isinstance(replies, SluiceError) else replies
            found |= {job_id: reply for (_, job_id), reply in zip(jobs, each)}
        return [found[job_id] for job_id in job_ids]

    async def aclose(self) -> None:
        for client in dict.fromkeys(partition.client for partition in self.clients):
            await client.aclose()


async def gather_partial(*questions: Awaitable[Answer]) -> list[Answer | SluiceError]:
    """Like asyncio.gather, with a SluiceError in place of each failed answer; raises it if all
    failed."""
    found = await asyncio.gather(*questions, return_exceptions=True)
    errors: list[SluiceError] = []
    for each in found:
        if isinstance(each, SluiceError):
            errors.append(each)
        elif isinstance(each, BaseException):
            raise each
    if errors and len(errors) == len(found):
        raise errors[0]
    return cast("list[Answer | SluiceError]", found)
