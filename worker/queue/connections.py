"""The Redis connections of a worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis
from redis.asyncio import Redis

from sluice.common.contracts.jobs import JobKeys
from sluice.common.process.usage import raise_file_limit
from sluice.common.redis.addresses import url_for_tag
from sluice.common.redis.connection import REPLY_TIMEOUT_S, async_client, sync_client
from sluice.common.redis.pipelined import CommandClient, PipelinedConnection

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings

log = logging.getLogger(__name__)

#: Connections for single reads, and for the keys that features keep in Redis.
CONNECTIONS = 4
#: Open files per queue at most: the above, writing, reading, renewing, listening.
FILES_PER_QUEUE = CONNECTIONS + 4
#: Open files that do not depend on the queues: logs, models, files of handlers.
OTHER_FILES = 256
#: Seconds that Redis gets to reply, however short the lease is.
SHORTEST_REPLY_S = 1.0


@dataclass(frozen=True)
class Connections:
    """The connections of one queue, each with one purpose."""

    #: Single reads.
    client: Redis
    #: Scripts, and claims of other workers' messages.
    writing: CommandClient
    #: Blocking reads of the queue.
    reading: CommandClient
    #: Lease renewals, from a thread.
    renewing: redis.Redis

    @property
    def async_connections(self) -> tuple[CommandClient | Redis, ...]:
        """All except `renewing`, which the lease keeper closes."""
        return self.writing, self.reading, self.client


def ensure_file_limit(queues: int) -> None:
    """Raise the limit of open files: without its connections a queue would not be read."""
    needed = OTHER_FILES + FILES_PER_QUEUE * queues
    allowed = raise_file_limit(needed)
    if allowed < needed:
        log.warning(
            "this process may open only %d files, but %d queues may need %d; raise LimitNOFILE= of "
            "the unit, or ulimit -n",
            allowed,
            queues,
            needed,
        )


def open_connections(
    settings: WorkerSettings, url: str, keys: JobKeys, known: dict[str, Connections]
) -> Connections:
    """Connections for one queue. Queues on the same server share `client` and `writing`; `known`
    has the connections opened so far, by URL."""
    url = url_for_tag(url, keys.tag)
    # A worker with a short lease must not wait long for a connection that has stopped responding.
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
