"""The Redis under examination: what it says of itself, asked once."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import redis
from redis import exceptions

from common import codec
from common.connection import TRANSIENT_ERRORS, sync_client
from ops.doctor.finding import Unable
from ops.redis_target import RedisTarget

#: Seconds for one reply; a healthy Redis takes a thousandth.
REPLY_S = 2.0
INSTALLED, INSTALLED_LOCAL = "/etc/sluice/redis.conf", "/etc/sluice/redis-local.conf"


class Server:
    """A Redis, asked gently; what may not be asked raises `Unable`."""

    def __init__(self, target: RedisTarget, client: redis.Redis | None = None) -> None:
        self.target = target
        self._client = client
        #: Why it does not answer, once that is known.
        self.trouble: Exception | None = None
        #: How long the first answer took, in milliseconds.
        self.first_answer_ms = 0.0

    @cached_property
    def client(self) -> Any:
        """A client in bytes mode; raises ValueError for a URL that is none."""
        return self._client or sync_client(self.target.url, reply_timeout_s=REPLY_S)

    @property
    def answers(self) -> bool:
        """Whether it can be talked to; asked once."""
        return self._first_try and self.trouble is None

    @cached_property
    def _first_try(self) -> bool:
        try:
            self.client.ping()  # opens the connection
            started = time.perf_counter()
            self.client.ping()
            self.first_answer_ms = (time.perf_counter() - started) * 1000
        except exceptions.NoPermissionError:
            return True  # it is there, and knows us
        except (exceptions.RedisError, ValueError, *TRANSIENT_ERRORS) as error:
            self.trouble = error
            return False
        return True

    @cached_property
    def info(self) -> dict[str, Any]:
        """INFO, by its own names."""
        return dict(self._ask(lambda: self.client.info(), "INFO"))

    def number(self, name: str) -> int:
        """A number of INFO; 0 where this version does not tell it."""
        value = self.info.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    def setting(self, name: str) -> str:
        """A value of CONFIG GET; empty where this version does not know it."""
        found = self._ask(lambda: self.client.config_get(name), "CONFIG GET")
        return {_text(key): _text(value) for key, value in found.items()}.get(name, "")

    @cached_property
    def version(self) -> str:
        """Such as 7.0.15."""
        return str(self.info.get("redis_version", ""))

    def change(self, name: str, value: str) -> str:
        """How to change a setting, now and for good."""
        now = f"{self.target.cli} CONFIG SET {name} {value}"
        if self.target.is_private:  # it has no file, and is started with our options next time
            return now
        return f"`{now}` now, and the line `{name} {value}` in {self.config_file} for good"

    @property
    def config_file(self) -> str:
        """Where an operator's own settings belong."""
        found = str(self.info.get("config_file", "")) or "redis.conf"
        # The installer writes this one anew each time, and has it read the other.
        return INSTALLED_LOCAL if found == INSTALLED else found

    def default_user(self) -> DefaultUser:
        """The user that whoever brings no name becomes."""
        rows = self._ask(lambda: self.client.acl_list(), "ACL LIST")
        for row in rows:
            words = _text(row).split()
            if words[:2] == ["user", "default"]:
                return DefaultUser(words[2:])
        raise Unable("ACL LIST names no default user")

    def _ask(self, question: Any, what: str) -> Any:
        try:
            return question()
        except exceptions.NoPermissionError:
            raise Unable(
                f"this Redis user may not {what}; name an administrator's URL with --redis"
            ) from None
        except exceptions.ResponseError as error:
            raise Unable(f"{what}: {error}") from None


def _text(value: object) -> str:
    """redis-py decodes some replies, and others not."""
    return codec.text(value) if isinstance(value, bytes) else str(value)


class DefaultUser:
    """What the ACL says of the default user."""

    def __init__(self, words: list[str]) -> None:
        self.enabled = "on" in words
        self.needs_password = "nopass" not in words
        self.may_everything = "+@all" in words and "~*" in words

    @property
    def open(self) -> bool:
        """Whether anybody who can connect may do anything."""
        return self.enabled and not self.needs_password
