"""Which URLs of Redis a setting may hold; messages never show a password."""

from __future__ import annotations

from typing import Any

from redis.asyncio.connection import parse_url

from common.addresses import SCHEMES, is_cluster, is_multi_host, parse

_SCHEMES = ("redis://", "rediss://", "unix://")
#: What to do about a URL that cannot be read.
URL_FORM = "write redis://user:password@host:6379/0, and / ? # @ in a password as %2F %3F %23 %40"


def checked_url(url: str) -> str:
    """The same URL; a ValueError says what is wrong with it."""
    if is_multi_host(url):
        parse(url)
    elif not url.startswith(_SCHEMES):
        raise ValueError(f"must start with one of {', '.join((*_SCHEMES, *SCHEMES))}")
    elif not 0 < _parsed(url).get("port", 6379) < 65536:
        raise ValueError("the port must be between 1 and 65535")
    return url


def check_for_cluster(
    url: str | None, partitions: int, bullmq_url: str | None, bullmq_queues: str
) -> None:
    """What a Cluster cannot do is refused at start, with the fix."""
    if url is None or not is_cluster(url):
        return
    if partitions == 1:
        raise ValueError(
            "a Redis Cluster needs jobs divided into partitions; set QUEUE_PARTITIONS to 2 or more "
            "(16 leaves room to grow), the same in every process, before the first job"
        )
    if bullmq_queues and bullmq_url is None:
        raise ValueError(
            "BullMQ's queues cannot be on a Redis Cluster of ours; set BULLMQ_REDIS_URL to the "
            "single server (redis://) or Sentinel set (redis+sentinel://) that they are on"
        )


def checked_bullmq_url(url: str) -> str:
    """The same URL; a ValueError for one that BullMQ's queues cannot be on."""
    if is_cluster(url):
        raise ValueError(
            "BullMQ's queues cannot be on a Redis Cluster of ours; name a single server "
            "(redis://) or a Sentinel set (redis+sentinel://)"
        )
    return checked_url(url)


def _parsed(url: str) -> Any:
    """Without what the parser says of a URL that is none: it may quote the password."""
    try:
        return parse_url(url)
    except ValueError:
        raise ValueError(f"is no URL of Redis; {URL_FORM}") from None
