"""Processes that share a Redis agree on how its jobs are kept: by which version of the bookkeeping,
and in how many partitions.

Whoever comes first writes it down. A process that is told something else, or finds a version newer
than its own, does not start: it would lose jobs that the others keep. Older processes may go on
beside newer ones for as long as the version stays; it changes only with what they cannot read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import redis

from common import codec
from common.contracts.jobs import SCHEMA_VERSION, SchemaField
from common.errors import UnsuitableRedis
from common.redis.addresses import Topology, url_for_tag
from common.redis.connection import TRANSIENT_ERRORS, sync_client
from common.redis.partitions import HOME_PARTITION, Partitions

log = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 2.0
RETRY_INTERVAL_S = 2.0

OnUnsuitable = Callable[[UnsuitableRedis], object]


def ensure_compatible(
    url: str,
    partitions: Partitions,
    on_unsuitable: OnUnsuitable = lambda error: None,
    *,
    answers: bool = True,
) -> None:
    """Make sure that we keep jobs as the others do; of a Redis that does not answer, once it does.

    Raises UnsuitableRedis if not. If that is found out later, `on_unsuitable` is told, from a
    thread.
    """
    if not answers or not _try_check(url, partitions):
        threading.Thread(
            target=_retry_check, args=(url, partitions, on_unsuitable), name="schema", daemon=True
        ).start()


def check_schema(client: redis.Redis, partitions: Partitions) -> None:
    """Read what is written down, or write it; raises UnsuitableRedis where it is not for us."""
    key = partitions.home.schema
    ours = {
        SchemaField.VERSION: SCHEMA_VERSION,
        SchemaField.PARTITIONS: partitions.count,
    }
    other = _other_schema_key(client, partitions)
    raw: Any = client.get(other) if other else None
    if raw is None:
        if client.set(key, codec.dumps(ours), nx=True):
            return
        raw = client.get(key)
    theirs = codec.parse_payload(raw or b"{}")
    version = theirs.get(SchemaField.VERSION, SCHEMA_VERSION)
    count = theirs.get(SchemaField.PARTITIONS, partitions.count)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UnsuitableRedis(
            f"the jobs in this Redis are kept by version {version} of the bookkeeping, and this "
            f"Sluice knows {SCHEMA_VERSION}; install the version that the other processes have"
        )
    if isinstance(count, int) and count != partitions.count:
        raise UnsuitableRedis(
            f"QUEUE_PARTITIONS is {partitions.count}, and the jobs in this Redis are divided into "
            f"{count}; give every process {count}, or see docs/scaling.md on how to change it"
        )


def _other_schema_key(client: redis.Redis, partitions: Partitions) -> str:
    """Where it is written by those who do not divide jobs while we do, or the other way round.

    A Cluster has only such as do. Empty as well for a user of our own, who may hardly read there;
    Redis keeps a list of those who try what they may not, and operators read it.
    """
    options, home = client.connection_pool.connection_kwargs, partitions.home
    address = options.get("address")
    if options.get("username") or (address and address.kind is Topology.CLUSTER):
        return ""
    if not home.tag:
        return home.partition(HOME_PARTITION).schema
    return replace(home, queue=home.queue[len(home.tag) :], tag="").schema


def _try_check(url: str, partitions: Partitions) -> bool:
    client = sync_client(url_for_tag(url, partitions.home.tag), reply_timeout_s=REPLY_TIMEOUT_S)
    try:
        check_schema(client, partitions)
    except redis.AuthenticationError:
        return True  # which is complained of elsewhere
    except TRANSIENT_ERRORS:
        return False
    except redis.ResponseError as error:
        log.warning("whether others keep jobs as we do cannot be asked: %s", error)
    except redis.RedisError:
        return False
    finally:
        client.close()
    return True


def _retry_check(url: str, partitions: Partitions, on_unsuitable: OnUnsuitable) -> None:
    try:
        while not _try_check(url, partitions):
            time.sleep(RETRY_INTERVAL_S)
    except UnsuitableRedis as error:
        log.critical("%s", error)
        on_unsuitable(error)
