"""URLs of a Sentinel set or a Cluster.

`redis+sentinel://user:password@host:port,host:port/mymaster/0` and
`redis+cluster://user:password@host:port,host:port`; `rediss+…` for TLS. Each connection goes to
one server. For a Cluster, the URL's fragment selects it by hash tag (`url_for_tag`).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from redis.asyncio.connection import parse_url
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from sluice.common.redis import tls


class Topology(str, Enum):
    """The kind of deployment behind a URL with several hosts."""

    SENTINEL = "sentinel"
    CLUSTER = "cluster"


#: Scheme -> topology, and whether TLS is used.
_KINDS: Final = {
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}
SCHEMES: Final = tuple(f"{scheme}://" for scheme in _KINDS)
CLUSTER_SLOTS: Final = REDIS_CLUSTER_HASH_SLOTS
_PORTS = {Topology.SENTINEL: 26379, Topology.CLUSTER: 6379}
#: The correct form of each kind of URL, for error messages.
_FORMS = {
    Topology.SENTINEL: "write redis+sentinel://user:password@host:26379,host:26379/mymaster/0",
    Topology.CLUSTER: "write redis+cluster://user:password@host:6379,host:6379",
}
_ESCAPES = "and / ? # @ , in a password as %2F %3F %23 %40 %2C"
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,5}))?")
_TAG = re.compile(r"\{[^{}]+\}")
#: The hash tag of a Cluster URL without a fragment: all singleton data is in partition 0.
_HOME_TAG = "{0}"
_SENTINEL_USERNAME = "sentinel_username"
_SENTINEL_PASSWORD = "sentinel_password"


class Node(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisAddress(NamedTuple):
    """A parsed URL of several hosts."""

    kind: Topology
    tls: bool
    #: Servers to query: sentinels, or any nodes of the Cluster.
    seeds: tuple[Node, ...]
    username: str | None
    password: str | None
    #: The name of the master in Sentinel; empty for a Cluster.
    service: str
    db: int
    #: The hash tag whose slot owner is addressed; empty for Sentinel.
    tag: str
    #: `ssl_…` options for redis-py.
    options: tuple[tuple[str, str], ...]
    sentinel_username: str | None
    sentinel_password: str | None

    @property
    def slot(self) -> int:
        """The slot whose owner is addressed."""
        return keyslot(self.tag)

    @property
    def server_set(self) -> RedisAddress:
        """The same set of servers, without the tag and the database."""
        return self._replace(tag="", db=0)

    def data_url(self, node: Node) -> str:
        """A plain URL of a data server."""
        return self._plain(node, self.username, self.password, self.db)

    def discovery_url(self, node: Node) -> str:
        """A plain URL of a server to query for the location of the data."""
        if self.kind is Topology.CLUSTER:
            return self._plain(node, self.username, self.password, 0)
        return self._plain(node, self.sentinel_username, self.sentinel_password, 0)

    def _plain(self, node: Node, username: str | None, password: str | None, db: int) -> str:
        scheme = "rediss" if self.tls else "redis"
        user = ""
        if username or password:
            user = f"{quote(username or '', safe='')}:{quote(password or '', safe='')}@"
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{scheme}://{user}{node}/{db}{query}"

    def __repr__(self) -> str:  # must not contain the password: it appears in tracebacks
        return f"Address({self.kind.value}, {', '.join(map(str, self.seeds))})"


def is_multi_host(url: str) -> bool:
    """True if a URL names a Sentinel set or a Cluster."""
    return url.startswith(SCHEMES)


def is_cluster(url: str) -> bool:
    """True if a URL names a Cluster."""
    return is_multi_host(url) and _KINDS[url.partition("://")[0]][0] is Topology.CLUSTER


def keyslot(key: str) -> int:
    """The slot of a key: computed from its hash tag if it has one, else from the whole key."""
    return key_slot(key.encode())


def url_for_tag(url: str, tag: str) -> str:
    """The URL for connections to the owner of a hash tag (`{3}`, `{3}:`); unchanged if not a
    Cluster."""
    if not tag or not is_cluster(url):
        return url
    found = _TAG.match(tag)
    if found is None:
        raise ValueError(f"{tag!r} is not a hash tag")
    return f"{url.partition('#')[0]}#{found[0]}"


@lru_cache(maxsize=256)
def parse_address(url: str) -> RedisAddress:
    """Parse a URL of several hosts; raises a ValueError that never contains the password."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _KINDS:
        raise ValueError(f"must start with one of {', '.join(SCHEMES)}")
    kind, tls = _KINDS[scheme]
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, hosts = authority.rpartition("@")
    if "@" in user:
        raise _invalid(kind, "there is more than one @")
    username, _, password = user.partition(":")
    seeds = tuple(dict.fromkeys(_node(kind, host) for host in hosts.split(",")))
    service, db = _service(kind, path)
    options = _options(kind, tls, query)
    return RedisAddress(
        kind=kind,
        tls=tls,
        seeds=seeds,
        username=unquote(username) or None,
        password=unquote(password) or None,
        service=service,
        db=db,
        tag=_tag(kind, fragment),
        options=tuple((name, value) for name, value in options.items() if name.startswith("ssl_")),
        sentinel_username=options.get(_SENTINEL_USERNAME),
        sentinel_password=options.get(_SENTINEL_PASSWORD),
    )


def _invalid(kind: Topology, what: str) -> ValueError:
    return ValueError(f"{what}; {_FORMS[kind]}, {_ESCAPES}")


def _node(kind: Topology, text: str) -> Node:
    found = _HOST.fullmatch(text)
    if found is None:  # not quoted: it may be half a password
        raise _invalid(kind, "one of the hosts is invalid")
    port = int(found["port"] or _PORTS[kind])
    if not 0 < port < 65536:
        raise ValueError("the port must be between 1 and 65535")
    return Node(found["six"] or found["name"], port)


def _service(kind: Topology, path: str) -> tuple[str, int]:
    if kind is Topology.CLUSTER:
        if path not in ("", "0"):
            raise _invalid(kind, "a Cluster has database 0 only")
        return "", 0
    name, _, db = path.partition("/")
    if not name:
        raise _invalid(kind, "the name of the master is missing")
    if db and not db.isdecimal():
        raise _invalid(kind, "the database must be a number")
    return unquote(name), int(db or 0)


def _tag(kind: Topology, fragment: str) -> str:
    if not fragment:
        return _HOME_TAG if kind is Topology.CLUSTER else ""
    if kind is Topology.SENTINEL or not _TAG.fullmatch(fragment):
        raise _invalid(kind, "there is an unexpected #")
    return fragment


def _options(kind: Topology, tls: bool, query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _invalid(kind, "the options after the ? cannot be read") from None
    for name in options:
        if name in (_SENTINEL_USERNAME, _SENTINEL_PASSWORD):
            if kind is Topology.CLUSTER:
                raise _invalid(kind, f"{name} is for redis+sentinel:// only")
        elif not name.startswith("ssl_"):
            allowed = f"ssl_…, {_SENTINEL_USERNAME}, {_SENTINEL_PASSWORD}"
            raise _invalid(kind, f"unknown option; valid ones are {allowed}")
        elif not tls:
            raise _invalid(kind, f"{name} needs rediss+{kind.value}://")
    return options


_SCHEMES = ("redis://", "rediss://", "unix://")
#: The correct form of a URL, for error messages.
URL_FORM = "write redis://user:password@host:6379/0, and / ? # @ in a password as %2F %3F %23 %40"


def validate_url(url: str) -> str:
    """The same URL; raises ValueError if it is invalid, or names certificates that are."""
    if is_multi_host(url):
        address = parse_address(url)
        options = _parse_plain_url(address.data_url(address.seeds[0]))
    elif not url.startswith(_SCHEMES):
        raise ValueError(f"must start with one of {', '.join((*_SCHEMES, *SCHEMES))}")
    else:
        options = _parse_plain_url(url)
    if not 0 < options.get("port", 6379) < 65536:
        raise ValueError("the port must be between 1 and 65535")
    tls.validate_options(options)
    return url


def check_for_cluster(
    url: str | None, partitions: int, bullmq_url: str | None, bullmq_queues: str
) -> None:
    """Raise ValueError, with the fix, for settings that a Cluster does not support."""
    if url is None or not is_cluster(url):
        return
    if partitions == 1:
        raise ValueError(
            "a Redis Cluster needs jobs divided into partitions; set QUEUE_PARTITIONS to 2 or more "
            "(16 allows for growth), the same in every process, before the first job"
        )
    if bullmq_queues and bullmq_url is None:
        raise ValueError(
            "BullMQ queues cannot be on Sluice's Redis Cluster; set BULLMQ_REDIS_URL to the "
            "single server (redis://) or Sentinel set (redis+sentinel://) that they are on"
        )


def validate_bullmq_url(url: str) -> str:
    """The same URL; raises ValueError if BullMQ queues cannot be there."""
    if is_cluster(url):
        raise ValueError(
            "BullMQ queues cannot be on a Redis Cluster; name a single server "
            "(redis://) or a Sentinel set (redis+sentinel://)"
        )
    return validate_url(url)


def _parse_plain_url(url: str) -> Any:
    # redis-py's error message may contain the password, so it is replaced.
    try:
        return parse_url(url)
    except ValueError:
        raise ValueError(f"is not a Redis URL; {URL_FORM}") from None
