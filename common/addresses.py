"""URLs that name a Sentinel set or a Cluster instead of one server.

`redis+sentinel://user:password@host:port,host:port/mymaster/0` and
`redis+cluster://user:password@host:port,host:port`; `rediss+…` for TLS. A connection of ours
talks to one server: which of a Cluster's, the URL's fragment says (`for_tag`).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot


class Kind(str, Enum):
    """What stands behind a URL of several hosts."""

    SENTINEL = "sentinel"
    CLUSTER = "cluster"


#: Scheme -> what stands behind it, and whether over TLS.
_KINDS: Final = {
    "redis+sentinel": (Kind.SENTINEL, False),
    "rediss+sentinel": (Kind.SENTINEL, True),
    "redis+cluster": (Kind.CLUSTER, False),
    "rediss+cluster": (Kind.CLUSTER, True),
}
SCHEMES: Final = tuple(f"{scheme}://" for scheme in _KINDS)
SLOTS: Final = REDIS_CLUSTER_HASH_SLOTS
_PORTS = {Kind.SENTINEL: 26379, Kind.CLUSTER: 6379}
#: How a URL of each kind is written; part of every message about one that is not.
_FORMS = {
    Kind.SENTINEL: "write redis+sentinel://user:password@host:26379,host:26379/mymaster/0",
    Kind.CLUSTER: "write redis+cluster://user:password@host:6379,host:6379",
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


class Address(NamedTuple):
    """A URL of several hosts, taken apart."""

    kind: Kind
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
    def whole(self) -> Address:
        """The same set of servers, whichever of them is meant."""
        return self._replace(tag="", db=0)

    def data_url(self, node: Node) -> str:
        """A plain URL of a server that keeps data."""
        return self._plain(node, self.username, self.password, self.db)

    def asking_url(self, node: Node) -> str:
        """A plain URL of a server that is asked who has the data."""
        if self.kind is Kind.CLUSTER:
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
    return is_multi_host(url) and _KINDS[url.partition("://")[0]][0] is Kind.CLUSTER


def keyslot(key: str) -> int:
    """The slot of a key: of what stands between its first braces, where it has such."""
    return key_slot(key.encode())


def for_tag(url: str, tag: str) -> str:
    """The URL for connections to the owner of a hash tag (`{3}`, `{3}:`); others as they are."""
    if not tag or not is_cluster(url):
        return url
    found = _TAG.match(tag)
    if found is None:
        raise ValueError(f"{tag!r} is no hash tag")
    return f"{url.partition('#')[0]}#{found[0]}"


@lru_cache(maxsize=256)
def parse(url: str) -> Address:
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
        raise _wrong(kind, "there is more than one @")
    username, _, password = user.partition(":")
    seeds = tuple(dict.fromkeys(_node(kind, host) for host in hosts.split(",")))
    service, db = _service(kind, path)
    options = _options(kind, tls, query)
    return Address(
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


def _wrong(kind: Kind, what: str) -> ValueError:
    return ValueError(f"{what}; {_FORMS[kind]}, {_ESCAPES}")


def _node(kind: Kind, text: str) -> Node:
    found = _HOST.fullmatch(text)
    if found is None:  # it may be half a password, and is not quoted
        raise _wrong(kind, "one of the hosts is none")
    port = int(found["port"] or _PORTS[kind])
    if not 0 < port < 65536:
        raise ValueError("the port must be between 1 and 65535")
    return Node(found["six"] or found["name"], port)


def _service(kind: Kind, path: str) -> tuple[str, int]:
    if kind is Kind.CLUSTER:
        if path not in ("", "0"):
            raise _wrong(kind, "a Cluster has database 0 only")
        return "", 0
    name, _, db = path.partition("/")
    if not name:
        raise _wrong(kind, "the name of the master is missing")
    if db and not db.isdecimal():
        raise _wrong(kind, "the database must be a number")
    return unquote(name), int(db or 0)


def _tag(kind: Kind, fragment: str) -> str:
    if not fragment:
        return _HOME_TAG if kind is Kind.CLUSTER else ""
    if kind is Kind.SENTINEL or not _TAG.fullmatch(fragment):
        raise _wrong(kind, "there is a # that does not belong there")
    return fragment


def _options(kind: Kind, tls: bool, query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _wrong(kind, "what follows the ? cannot be read") from None
    for name in options:
        if name in (_SENTINEL_USERNAME, _SENTINEL_PASSWORD):
            if kind is Kind.CLUSTER:
                raise _wrong(kind, f"{name} is for redis+sentinel:// only")
        elif not name.startswith("ssl_"):
            allowed = f"ssl_…, {_SENTINEL_USERNAME}, {_SENTINEL_PASSWORD}"
            raise _wrong(kind, f"unknown option; there are {allowed}")
        elif not tls:
            raise _wrong(kind, f"{name} needs rediss+{kind.value}://")
    return options
