"""Checks the configured Redis at start-up: version, role, eviction, persistence."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import redis

from sluice.common.errors import UnsuitableRedis
from sluice.common.redis.addresses import (
    CLUSTER_SLOTS,
    Topology,
    is_cluster,
    is_multi_host,
    parse_address,
)
from sluice.common.redis.connection import TRANSIENT_ERRORS, sync_client
from sluice.common.redis.locator import survey_cluster
from sluice.common.redis.tls import tls_problem
from sluice.common.text import plural
from sluice.common.version import OLDEST_REDIS

log = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 2.0
RETRY_INTERVAL_S = 2.0
_MASTER = "master"
_SETTINGS = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync")


class Finding(NamedTuple):
    """A problem of the Redis server, with its remedy."""

    level: int
    text: str


def check_server(
    client: redis.Redis, kind: Topology | None = None, replicas: int = 0
) -> list[Finding]:
    """Problems of a server; raises UnsuitableRedis if it cannot be used at all.

    `kind` is the topology it belongs to; `replicas` is WAIT_REPLICAS.
    """
    info = _info(client)
    version = str(info.get("redis_version", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_REDIS:
        raise UnsuitableRedis(
            f"Redis is {version}; Sluice needs 6.2 or later. Install a newer redis-server, or "
            "unset REDIS_URL to run the one that comes with Sluice"
        )
    found = [*_role(info), *_check_topology(info, kind, replicas)]
    settings = _settings_from_info(info)
    if settings and _has_name(client):
        return [*found, *_eviction(settings), *_persistence(settings)]
    try:
        settings = {name: _setting(client, name) for name in _SETTINGS}
    except redis.ResponseError as error:
        if settings:
            return [*found, *_eviction(settings), *_persistence(settings)]
        text = (
            f"Redis does not report its settings ({error}); make sure that it has `appendonly yes` "
            "and `maxmemory-policy noeviction`"
        )
        return [*found, Finding(logging.INFO, text)]
    return [*found, *_eviction(settings), *_persistence(settings)]


def _role(info: dict[str, Any]) -> list[Finding]:
    if info.get("role", _MASTER) == _MASTER:
        return []
    text = "Redis is a replica and accepts no writes; REDIS_URL must name the master"
    return [Finding(logging.ERROR, text)]


def _check_topology(info: dict[str, Any], kind: Topology | None, replicas: int) -> list[Finding]:
    """Problems with the topology and the number of replicas."""
    if info.get("cluster_enabled") and kind is not Topology.CLUSTER:
        text = (
            "Redis is a node of a Cluster, which holds only some of the keys; write "
            "redis+cluster://host:port in REDIS_URL, and set QUEUE_PARTITIONS"
        )
        return [Finding(logging.ERROR, text)]
    connected = int(info.get("connected_slaves", max(replicas, 1)))
    if connected < replicas:
        count = plural(connected, "replica is", "replicas are")
        text = (
            f"WAIT_REPLICAS is {replicas}, but only {count} connected: until there are more, "
            "every request that changes something gets 503"
        )
        return [Finding(logging.ERROR, text)]
    if kind is not None and not connected:
        text = "the master has no replica: if it fails, there is no failover and its jobs wait"
        return [Finding(logging.WARNING, text)]
    return []


def _unserved(missing: int) -> list[Finding]:
    if not missing:
        return []
    text = (
        f"{missing} of the Cluster's {CLUSTER_SLOTS} slots have no owner, so jobs of some "
        "partitions will wait; see `redis-cli --cluster check`, and `--cluster fix`"
    )
    return [Finding(logging.ERROR, text)]


def _eviction(settings: dict[str, str]) -> list[Finding]:
    policy = settings["maxmemory-policy"]
    if settings["maxmemory"] in ("", "0") or policy in ("", "noeviction"):
        return []
    text = (
        f"Redis may evict jobs when its memory is full (maxmemory-policy {policy}); set "
        "`maxmemory-policy noeviction` in redis.conf, or jobs will be lost"
    )
    return [Finding(logging.ERROR, text)]


def _persistence(settings: dict[str, str]) -> list[Finding]:
    if settings["appendonly"] == "no":
        text = (
            "Redis keeps no append-only file: when it stops, jobs since its last snapshot are "
            "lost; set `appendonly yes` in redis.conf"
        )
        return [Finding(logging.WARNING, text)]
    if settings["appendfsync"] == "no":
        text = (
            "Redis leaves writing to disk to the system (appendfsync no): a power cut may lose "
            "half a minute; set `appendfsync everysec`, or `always` to lose nothing"
        )
        return [Finding(logging.WARNING, text)]
    return []


def _info(client: redis.Redis) -> dict[str, Any]:
    try:
        info: Any = client.info()
    except redis.ResponseError:  # INFO is not permitted
        return {}
    return dict(info)


def _settings_from_info(info: dict[str, Any]) -> dict[str, str]:
    """The settings in INFO, which are all but `appendfsync`. Empty if INFO is not permitted."""
    if "aof_enabled" not in info or "maxmemory_policy" not in info:
        return {}
    return {
        "maxmemory": _text(info.get("maxmemory", "")),
        "maxmemory-policy": _text(info["maxmemory_policy"]),
        "appendonly": "yes" if info["aof_enabled"] else "no",
        "appendfsync": "",
    }


def _has_name(client: redis.Redis) -> bool:
    """True for a named Redis user: its ACL usually forbids CONFIG, and Redis would record the
    attempt in ACL LOG, which operators read."""
    return bool(client.connection_pool.connection_kwargs.get("username"))


def _setting(client: redis.Redis, name: str) -> str:
    answer: Any = client.config_get(name)
    found = {_text(key): _text(value) for key, value in answer.items()}
    return found.get(name, "")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def check_redis(
    url: str,
    on_unsuitable: Callable[[UnsuitableRedis], object] = lambda error: None,
    *,
    replicas: int = 0,
) -> bool:
    """Log the problems of the Redis at `url`; in the background if it does not answer yet.

    `replicas` is WAIT_REPLICAS. Raises UnsuitableRedis. A problem found in the background is passed
    to `on_unsuitable`, from a thread. Returns whether Redis has answered.
    """
    if _try_check(url, replicas, first=True):
        return True
    log.info("Redis does not answer yet; its settings will be checked when it does")
    threading.Thread(
        target=_retry_check, args=(url, replicas, on_unsuitable), name="preflight", daemon=True
    ).start()
    return False


def _try_check(url: str, replicas: int = 0, *, first: bool = False) -> bool:
    try:
        for finding in _findings(url, replicas):
            log.log(finding.level, "%s", finding.text)
    except redis.AuthenticationError as error:
        raise UnsuitableRedis(
            f"Redis rejects the login ({error}); user and password in REDIS_URL must be those of "
            "a Redis user (`ACL LIST`)"
        ) from None
    except (redis.RedisError, *TRANSIENT_ERRORS) as error:
        problem = tls_problem(url, error)
        if problem is not None and problem.permanent:
            raise UnsuitableRedis(f"{problem.cause}; {problem.fix}") from None
        if problem is not None and first:
            log.warning("%s; %s", problem.cause, problem.fix)
        return False
    return True


def _findings(url: str, replicas: int = 0) -> list[Finding]:
    """Problems of everything that the URL names: a server, the master of a set, every node."""
    if not is_cluster(url):
        return _check_one(url, Topology.SENTINEL if is_multi_host(url) else None, replicas)
    address = parse_address(url)
    owners, missing = survey_cluster(address)
    return _unserved(missing) + [
        Finding(level, f"{node}: {text}")
        for node in owners
        for level, text in _check_one(address.data_url(node), Topology.CLUSTER, replicas)
    ]


def _check_one(url: str, kind: Topology | None, replicas: int) -> list[Finding]:
    client = sync_client(url, reply_timeout_s=REPLY_TIMEOUT_S)
    try:
        return check_server(client, kind, replicas)
    finally:
        client.close()


def _retry_check(
    url: str, replicas: int, on_unsuitable: Callable[[UnsuitableRedis], object]
) -> None:
    try:
        while not _try_check(url, replicas):
            time.sleep(RETRY_INTERVAL_S)
    except UnsuitableRedis as error:
        log.critical("%s", error)
        on_unsuitable(error)
