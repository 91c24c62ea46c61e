"""The version of Sluice, and the versions of Redis and Valkey."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: The only place of the version; pyproject.toml and the installer read it here.
VERSION: Final = "0.2.0"
#: The oldest Redis release with every command that Sluice uses (XAUTOCLAIM).
OLDEST_REDIS: Final = (6, 2)
REDIS: Final = "Redis"
#: Based on Redis 7.2; it reports its own version, and 7.2.4 as the version of Redis.
VALKEY: Final = "Valkey"
#: Programs of both, the preferred one first.
SERVER_PROGRAMS: Final = ("redis-server", "valkey-server")
#: The last version whose files both can read.
_COMMON_FILES: Final = (7, 2)
_BANNER = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")


class ServerVersion(NamedTuple):
    """Product and version of a server."""

    product: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.numbers))}"

    @property
    def is_supported(self) -> bool:
        return self.numbers[:2] >= OLDEST_REDIS

    def can_read(self, written_by: ServerVersion) -> bool:
        """Whether it can load data files of the other server."""
        written = written_by.numbers[:2]
        same = self.product == written_by.product
        return self.numbers[:2] >= written and (same or written <= _COMMON_FILES)


def parse_banner(text: str) -> ServerVersion | None:
    """The version in the output of `redis-server --version`; None if it is another program."""
    found = _BANNER.search(text)
    if found is None:
        return None
    product = VALKEY if text.startswith(VALKEY) else REDIS
    return ServerVersion(product, tuple(map(int, found.groups())))


def reported_version(info: Mapping[str, Any]) -> tuple[str, str]:
    """Product and version in a reply to INFO; the version is empty if it is not reported."""
    if "valkey_version" in info:
        return VALKEY, str(info["valkey_version"])
    return REDIS, str(info.get("redis_version", ""))
