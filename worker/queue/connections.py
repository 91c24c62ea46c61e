"""The Redis connections of a worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
from redis.asyncio import Redis

from common.contracts.jobs import JobKeys
from common.process.usage import raise_file_limit
from common.redis.addresses import url_for_tag
from common.redis.connection import REPLY_TIMEOUT_S, async_client, sync_client
from common.redis.pipelined import CommandClient, PipelinedConnection

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings

log = logging.getLogger(__name__)

#: For single reads, and for what handlers keep in Redis beside their jobs.
CONNECTIONS = 4
#: Files that a worker may have open for each queue, at most: the above, writing, reading, renewing,
#: listening. And besides: logs, models, what handlers want.
FILES_PER_QUEUE = CONNECTIONS + 4
OTHER_FILES = 256
#: However short the lease, Redis gets so many seconds to answer.
SHORTEST_REPLY_S = 1.0


@dataclass(frozen=True)
class Connections:
    """A worker's connections, each with one purpose."""

    #: Single reads.
    client: Redis
    #: Scripts, and claims of other workers' messages.
    writing: CommandClient
    #: Blocking reads of the queue.
    reading: CommandClient
    #: Renewals, from a thread.
    renewing: redis.Redis

    @property
    def async_connections(self) -> tuple[CommandClient | Redis, ...]:
        """Those that the event loop has opened, and closes."""
        return self.writing, self.reading, self.client


def ensure_file_limit(queues: int) -> None:
    """Raise the limit of open files: a queue without its connections would not be read."""
    wanted = OTHER_FILES + FILES_PER_QUEUE * queues
    allowed = raise_file_limit(wanted)
    if allowed < wanted:
        log.warning(
            "this process may open %d files only, and %d queues may want %d (LimitNOFILE= of the "
            "unit, or ulimit -n)",
            *(allowed, queues, wanted),
        )


def open_connections(
    settings: WorkerSettings, url: str, keys: JobKeys, known: dict[str, Connections]
) -> Connections:
    """Connections for one queue; partitions of one server share the client and the writer."""
    url = url_for_tag(url, keys.tag)
    # Whoever has a short lease must not wait long for a connection that fell silent.
    reply_timeout_s = min(REPLY_TIMEOUT_S, max(settings.lease_ms / 1000, SHORTEST_REPLY_S))
    reading = PipelinedConnection(
        url, block_s=settings.block_ms / 1000, reply_timeout_s=reply_timeout_s
    )
    renewing = sync_client(url, reply_timeout_s=min(REPLY_TIMEOUT_S, settings.lease_ms / 3000))
    if url in known:
        return Connections(known[url].client, known[url].writing, reading, renewing)
    client = async_client(url, connections=CONNECTIONS)
    known[url] = Connections(
        client, PipelinedConnection(url, reply_timeout_s=reply_timeout_s), reading, renewing
    )
    return known[url]
