"""The Redis server that is checked; its answers are cached."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import redis
from redis import exceptions

from common import codec
from common.contracts.jobs import JobKeys
from common.redis.addresses import url_for_tag
from common.redis.connection import TRANSIENT_ERRORS, sync_client
from common.redis.partitions import Partitions
from ops.doctor.finding import CheckSkipped
from ops.redis_target import RedisTarget

#: Time limit of one reply in seconds; a healthy Redis needs a thousandth.
REPLY_S = 2.0
INSTALLED, INSTALLED_LOCAL = "/etc/sluice/redis.conf", "/etc/sluice/redis-local.conf"


class RedisServer:
    """A Redis server; commands without permission raise CheckSkipped."""

    def __init__(self, target: RedisTarget, client: redis.Redis | None = None) -> None:
        self.target = target
        self._client = client
        #: Why it does not answer.
        self.error: Exception | None = None
        #: The round trip of the first PING in milliseconds.
        self.ping_ms = 0.0

    @cached_property
    def client(self) -> Any:
        """A client in bytes mode; raises ValueError for an invalid URL."""
        return self._client or sync_client(self.target.url, reply_timeout_s=REPLY_S)

    @property
    def answers(self) -> bool:
        return self._first_ping and self.error is None

    @cached_property
    def _first_ping(self) -> bool:
        try:
            self.client.ping()  # opens the connection
            started = time.perf_counter()
            self.client.ping()
            self.ping_ms = (time.perf_counter() - started) * 1000
        except exceptions.NoPermissionError:
            return True  # it answers, and knows the user
        except (exceptions.RedisError, ValueError, *TRANSIENT_ERRORS) as error:
            self.error = error
            return False
        return True

    @cached_property
    def info(self) -> dict[str, Any]:
        return dict(self._ask(lambda: self.client.info(), "INFO"))

    def number(self, name: str) -> int:
        """A number of INFO; 0 if this version does not have it."""
        value = self.info.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    def setting(self, name: str) -> str:
        """A value of CONFIG GET; empty if this version does not have it."""
        found = self._ask(lambda: self.client.config_get(name), "CONFIG GET")
        return {_text(key): _text(value) for key, value in found.items()}.get(name, "")

    @cached_property
    def version(self) -> str:
        return str(self.info.get("redis_version", ""))

    def how_to_set(self, name: str, value: str) -> str:
        """The instruction that changes a setting, now and permanently."""
        now = f"{self.target.cli} CONFIG SET {name} {value}"
        if self.target.is_private:  # it has no file: Sluice starts it with its own options
            return now
        return f"`{now}` now, and the line `{name} {value}` in {self.config_file} for good"

    @property
    def config_file(self) -> str:
        """The file for the operator's own settings."""
        found = str(self.info.get("config_file", "")) or "redis.conf"
        # The installer overwrites this file; it includes the other.
        return INSTALLED_LOCAL if found == INSTALLED else found

    def default_user(self) -> DefaultUser:
        """The ACL user of connections without a name."""
        rows = self._ask(lambda: self.client.acl_list(), "ACL LIST")
        for row in rows:
            words = _text(row).split()
            if words[:2] == ["user", "default"]:
                return DefaultUser(words[2:])
        raise CheckSkipped("ACL LIST names no default user")

    def _ask(self, question: Any, what: str) -> Any:
        try:
            return question()
        except exceptions.NoPermissionError:
            raise CheckSkipped(
                f"this Redis user may not {what}; name an administrator's URL with --redis"
            ) from None
        except exceptions.ResponseError as error:
            raise CheckSkipped(f"{what}: {error}") from None


def _text(value: object) -> str:
    """redis-py decodes some replies and not others."""
    return codec.decode_text(value) if isinstance(value, bytes) else str(value)


class DefaultUser:
    """The rights of the ACL's default user."""

    def __init__(self, words: list[str]) -> None:
        self.enabled = "on" in words
        self.needs_password = "nopass" not in words
        self.may_everything = "+@all" in words and "~*" in words

    @property
    def open(self) -> bool:
        return self.enabled and not self.needs_password


@dataclass(frozen=True)
class PartitionServer:
    """A partition of the queue and the server that has it."""

    number: int
    keys: JobKeys
    server: RedisServer

    @property
    def client(self) -> Any:
        """The client of its server; skips the check if that does not answer."""
        if not self.server.answers:
            raise CheckSkipped(f"partition {self.number} does not answer, see redis.partitions")
        return self.server.client


def partition_servers(partitions: Partitions, server: RedisServer) -> tuple[PartitionServer, ...]:
    """The server of each partition; without a Cluster all are on one."""
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
    """Partitions by the addresses of their servers."""
    found: dict[str, list[PartitionServer]] = {}
    for partition in partitions:
        found.setdefault(partition.server.target.address, []).append(partition)
    return found
