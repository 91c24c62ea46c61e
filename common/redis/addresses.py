"""URLs that name a Sentinel set or a Cluster instead of one server.

`redis+sentinel://user:password@host:port,host:port/mymaster/0` and
`redis+cluster://user:password@host:port,host:port`; `rediss+…` for TLS. A connection of ours
talks to one server: which of a Cluster's, the URL's fragment says (`for_tag`).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from redis.asyncio.connection import parse_url
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot


class Topology(str, Enum):
    """What stands behind a URL of several hosts."""

    SENTINEL = "sentinel"
    CLUSTER = "cluster"


#: Scheme -> what stands behind it, and whether over TLS.
_KINDS: Final = {
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}
SCHEMES: Final = tuple(f"{scheme}://" for scheme in _KINDS)
CLUSTER_SLOTS: Final = REDIS_CLUSTER_HASH_SLOTS
_PORTS = {Topology.SENTINEL: 26379, Topology.CLUSTER: 6379}
#: How a URL of each kind is written; part of every message about one that is not.
_FORMS = {
    Topology.SENTINEL: "write redis+sentinel://user:password@host:26379,host:26379/mymaster/0",
    Topology.CLUSTER: "write redis+cluster://user:password@host:6379,host:6379",
}
_ESCAPES = "and / ? # @ , in a password as %2F %3F %23 %40 %2C"
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,5}))?")
_TAG = re.compile(r"\{[^{}]+\}")
#: Where a Cluster's connection goes whose URL has no tag: everything that is one of a kind lives
#: in the first partition.
_HOME_TAG = "{0}"
_SENTINEL_USERNAME = "sentinel_username"
_SENTINEL_PASSWORD = "sentinel_password"


class Node(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisAddress(NamedTuple):
    """A URL of several hosts, taken apart."""

    kind: Topology
    tls: bool
    #: Who may be asked: sentinels, or any nodes of the Cluster.
    seeds: tuple[Node, ...]
    username: str | None
    password: str | None
    #: The name under which sentinels know the master; empty for a Cluster.
    service: str
    db: int
    #: The hash tag whose owner is meant; empty for Sentinel.
    tag: str
    #: `ssl_…`, as redis-py reads them.
    options: tuple[tuple[str, str], ...]
    sentinel_username: str | None
    sentinel_password: str | None

    @property
    def slot(self) -> int:
        """The slot whose owner is meant."""
        return keyslot(self.tag)

    @property
    def server_set(self) -> RedisAddress:
        """The same set of servers, whichever of them is meant."""
        return self._replace(tag="", db=0)

    def data_url(self, node: Node) -> str:
        """A plain URL of a server that keeps data."""
        return self._plain(node, self.username, self.password, self.db)

    def discovery_url(self, node: Node) -> str:
        """A plain URL of a server that is asked who has the data."""
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

    def __repr__(self) -> str:  # a password has no place in a traceback
        return f"Address({self.kind.value}, {', '.join(map(str, self.seeds))})"


def is_multi_host(url: str) -> bool:
    """Whether a URL names a Sentinel set or a Cluster."""
    return url.startswith(SCHEMES)


def is_cluster(url: str) -> bool:
    """Whether a URL names a Cluster."""
    return is_multi_host(url) and _KINDS[url.partition("://")[0]][0] is Topology.CLUSTER


def keyslot(key: str) -> int:
    """The slot of a key: of what stands between its first braces, where it has such."""
    return key_slot(key.encode())


def url_for_tag(url: str, tag: str) -> str:
    """The URL for connections to the owner of a hash tag (`{3}`, `{3}:`); others as they are."""
    if not tag or not is_cluster(url):
        return url
    found = _TAG.match(tag)
    if found is None:
        raise ValueError(f"{tag!r} is no hash tag")
    return f"{url.partition('#')[0]}#{found[0]}"


@lru_cache(maxsize=256)
def parse_address(url: str) -> RedisAddress:
    """Take a URL of several hosts apart; a ValueError says what is wrong, never the password."""
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
    if found is None:  # it may be half a password, and is not quoted
        raise _invalid(kind, "one of the hosts is none")
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
        raise _invalid(kind, "there is a # that does not belong there")
    return fragment


def _options(kind: Topology, tls: bool, query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _invalid(kind, "what follows the ? cannot be read") from None
    for name in options:
        if name in (_SENTINEL_USERNAME, _SENTINEL_PASSWORD):
            if kind is Topology.CLUSTER:
                raise _invalid(kind, f"{name} is for redis+sentinel:// only")
        elif not name.startswith("ssl_"):
            allowed = f"ssl_…, {_SENTINEL_USERNAME}, {_SENTINEL_PASSWORD}"
            raise _invalid(kind, f"unknown option; there are {allowed}")
        elif not tls:
            raise _invalid(kind, f"{name} needs rediss+{kind.value}://")
    return options


_SCHEMES = ("redis://", "rediss://", "unix://")
#: What to do about a URL that cannot be read.
URL_FORM = "write redis://user:password@host:6379/0, and / ? # @ in a password as %2F %3F %23 %40"


def validate_url(url: str) -> str:
    """The same URL; a ValueError says what is wrong with it."""
    if is_multi_host(url):
        parse_address(url)
    elif not url.startswith(_SCHEMES):
        raise ValueError(f"must start with one of {', '.join((*_SCHEMES, *SCHEMES))}")
    elif not 0 < _parse_plain_url(url).get("port", 6379) < 65536:
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


def validate_bullmq_url(url: str) -> str:
    """The same URL; a ValueError for one that BullMQ's queues cannot be on."""
    if is_cluster(url):
        raise ValueError(
            "BullMQ's queues cannot be on a Redis Cluster of ours; name a single server "
            "(redis://) or a Sentinel set (redis+sentinel://)"
        )
    return validate_url(url)


def _parse_plain_url(url: str) -> Any:
    """Without what the parser says of a URL that is none: it may quote the password."""
    try:
        return parse_url(url)
    except ValueError:
        raise ValueError(f"is no URL of Redis; {URL_FORM}") from None
