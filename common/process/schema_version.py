"""Makes sure that all processes of one Redis use the same schema version and partition count.

The first process writes both to a key. A process with another number of partitions, or with an
older schema version than the stored one, does not start: it would lose jobs. Processes of older
releases may run alongside newer ones while the version is the same. It changes only with data that
they could not read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import redis

from sluice.common import codec
from sluice.common.contracts.jobs import SCHEMA_VERSION, SchemaField
from sluice.common.errors import UnsuitableRedis
from sluice.common.redis.addresses import Topology, url_for_tag
from sluice.common.redis.connection import TRANSIENT_ERRORS, sync_client
from sluice.common.redis.partitions import HOME_PARTITION, Partitions

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
    """Check schema version and partitions; in the background if Redis does not answer yet.

    Raises UnsuitableRedis. A problem found in the background is passed to `on_unsuitable`, from a
    thread.
    """
    if not answers or not _try_check(url, partitions):
        threading.Thread(
            target=_retry_check, args=(url, partitions, on_unsuitable), name="schema", daemon=True
        ).start()


def check_schema(client: redis.Redis, partitions: Partitions) -> None:
    """Read the schema key, or write it; raises UnsuitableRedis if it does not match."""
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
            f"the jobs in this Redis use schema version {version}, and this Sluice supports "
            f"{SCHEMA_VERSION}; install the version of the other processes"
        )
    if isinstance(count, int) and count != partitions.count:
        raise UnsuitableRedis(
            f"QUEUE_PARTITIONS is {partitions.count}, but the jobs in this Redis are divided into "
            f"{count}; set it to {count} in every process, or see docs/scaling.md on changing it"
        )


def _other_schema_key(client: redis.Redis, partitions: Partitions) -> str:
    """The schema key of processes with one partition if this one has several, or vice versa.

    Empty for a Cluster, where all have several. Empty too for a named Redis user: its ACL usually
    forbids the other key, and Redis would record the attempt in ACL LOG, which operators read.
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
        return True  # reported by the preflight check
    except TRANSIENT_ERRORS:
        return False
    except redis.ResponseError as error:
        log.warning("schema version check failed: %s", error)
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
