"""The Redis server under test, with cached replies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import redis
from redis import exceptions

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.redis.addresses import url_for_tag, validate_url
from sluice.common.redis.connection import TRANSIENT_ERRORS, sync_client
from sluice.common.redis.partitions import Partitions
from sluice.ops.doctor.finding import CheckSkipped
from sluice.ops.redis_target import RedisTarget

#: Timeout of one reply in seconds; a healthy Redis needs about a millisecond.
REPLY_S = 2.0
INSTALLED, INSTALLED_LOCAL = "/etc/sluice/redis.conf", "/etc/sluice/redis-local.conf"


class RedisServer:
    """A Redis server. Commands that the user may not run raise CheckSkipped."""

    def __init__(self, target: RedisTarget, client: redis.Redis | None = None) -> None:
        self.target = target
        self._client = client
        #: The error, if it does not answer.
        self.error: Exception | None = None
        #: The round trip of the first PING in milliseconds.
        self.ping_ms = 0.0

    @cached_property
    def client(self) -> Any:
        """A client without decoding of replies; raises ValueError for an invalid URL."""
        if self._client is not None:
            return self._client
        return sync_client(validate_url(self.target.url), reply_timeout_s=REPLY_S)

    @property
    def answers(self) -> bool:
        return self._first_ping and self.error is None

    @cached_property
    def _first_ping(self) -> bool:
        try:
            self.ping()  # opens the connection
            self.ping_ms = self.ping()
        except exceptions.NoPermissionError:
            return True  # it answers and has accepted the user
        except (exceptions.RedisError, ValueError, *TRANSIENT_ERRORS) as error:
            self.error = error
            return False
        return True

    def ping(self) -> float:
        """The time of a round trip in milliseconds. A server with a full disk refuses PING."""
        started = time.perf_counter()
        try:
            self.client.ping()
        except exceptions.ResponseError as error:
            if not str(error).startswith("MISCONF"):
                raise
        return (time.perf_counter() - started) * 1000

    @cached_property
    def info(self) -> dict[str, Any]:
        return dict(self._ask(lambda: self.client.info(), "INFO"))

    def number(self, name: str) -> int:
        """A number from INFO; 0 if this Redis version does not have it."""
        value = self.info.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    def setting(self, name: str) -> str:
        """A value from CONFIG GET; empty if this Redis version does not have it."""
        found = self._ask(lambda: self.client.config_get(name), "CONFIG GET")
        return {_text(key): _text(value) for key, value in found.items()}.get(name, "")

    @cached_property
    def version(self) -> str:
        """The version of Redis whose commands it has; 7.2.4 for Valkey."""
        return str(self.info.get("redis_version", ""))

    def how_to_set(self, name: str, value: str) -> str:
        """How to change a setting, now and permanently."""
        now = f"{self.target.cli} CONFIG SET {name} {value}"
        if self.target.is_private:  # no configuration file: Sluice passes its options
            return now
        return f"run `{now}`, and add the line `{name} {value}` to {self.config_file}"

    @property
    def config_file(self) -> str:
        """The configuration file for changes by the operator."""
        found = str(self.info.get("config_file", "")) or "redis.conf"
        # The installer overwrites redis.conf, which includes redis-local.conf.
        return INSTALLED_LOCAL if found == INSTALLED else found

    def default_user(self) -> DefaultUser:
        """The ACL user of connections without credentials."""
        rows = self._ask(lambda: self.client.acl_list(), "ACL LIST")
        for row in rows:
            words = _text(row).split()
            if words[:2] == ["user", "default"]:
                return DefaultUser(words[2:])
        raise CheckSkipped("ACL LIST contains no default user")

    def _ask(self, question: Any, what: str) -> Any:
        try:
            return question()
        except exceptions.NoPermissionError:
            raise CheckSkipped(
                f"this Redis user may not run {what}; pass an administrator's URL with --redis"
            ) from None
        except exceptions.ResponseError as error:
            raise CheckSkipped(f"{what}: {error}") from None


def _text(value: object) -> str:
    """redis-py decodes some replies but not all."""
    return codec.decode_text(value) if isinstance(value, bytes) else str(value)


class DefaultUser:
    """The rights of the default ACL user."""

    def __init__(self, words: list[str]) -> None:
        self.enabled = "on" in words
        self.needs_password = "nopass" not in words
        self.is_unrestricted = "+@all" in words and "~*" in words

    @property
    def open(self) -> bool:
        return self.enabled and not self.needs_password


@dataclass(frozen=True)
class PartitionServer:
    """A partition of the queue and its server."""

    number: int
    keys: JobKeys
    server: RedisServer

    @property
    def client(self) -> Any:
        """The client of the server; skips the check if the server does not answer."""
        if not self.server.answers:
            raise CheckSkipped(f"partition {self.number} does not answer, see redis.partitions")
        return self.server.client


def partition_servers(partitions: Partitions, server: RedisServer) -> tuple[PartitionServer, ...]:
    """The server of each partition; the same for all without a Cluster."""
    found: list[PartitionServer] = []
    servers: dict[str, RedisServer] = {}
    for number, keys in enumerate(partitions.keys):
        url = url_for_tag(server.target.url, keys.tag)
        if url not in servers:
            other = number > 0 and url != server.target.url
            servers[url] = RedisServer(replace(server.target, url=url)) if other else server
        found.append(PartitionServer(number, keys, servers[url]))
    return tuple(found)


def by_server(partitions: tuple[PartitionServer, ...]) -> Mapping[str, list[PartitionServer]]:
    """Partitions by server address."""
    found: dict[str, list[PartitionServer]] = {}
    for partition in partitions:
        found.setdefault(partition.server.target.address, []).append(partition)
    return found
