"""Generates users.acl: the commands and keys of each service, for the installed Redis version.

`EVAL` must name every key a script uses, and Redis then requires read and write permission for each
of them. So the gateway needs the queue among its keys. From Redis 7 on, its base permissions on the
queue are the few commands that do not read it; everything else is in a *selector* without the
queue. Redis 6.2 has no selectors: there the gateway's user could read the queue with XRANGE and
XREAD.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from deploy.installer.layout import ADMIN, GATEWAY, WORKER
from deploy.installer.redis_server import RedisServer
from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.images import IMAGE_KEYS_PATTERN, ImageKeys, image_key_patterns
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.rag import document_key_patterns, upload_key
from sluice.common.contracts.workflow.keys import (
    WORKFLOW_KEYS_PATTERN,
    WorkflowKeys,
    workflow_key_patterns,
)

#: First version with selectors, key permissions and real subcommands.
SELECTORS_SINCE: Final = 7
#: First version with `CLIENT SETINFO`. From 7.0 on an unknown subcommand invalidates the file.
SETINFO_SINCE: Final = (7, 2)

_CONNECTION: Final = ("ping", "echo", "client|setname", "client|getname", "client|id", "time")
_SERVER: Final = ("info",)
#: For WAIT_REPLICAS: the gateway responds only after the replicas have confirmed the write.
_REPLICATION: Final = ("wait",)
_SCRIPTS: Final = ("eval", "evalsha")
_TRANSACTIONS: Final = ("multi", "exec", "discard", "watch", "unwatch")
_CHANNELS: Final = ("publish", "subscribe", "unsubscribe")
_KEYS: Final = ("exists", "type", "del", "unlink", "expire", "pexpire", "ttl", "pttl")
_STRINGS: Final = ("get", "getrange", "mget", "set", "setex", "incr", "incrby", "strlen")
_HASHES: Final = (
    *("hget", "hmget", "hgetall", "hkeys", "hlen", "hexists", "hscan", "hrandfield"),
    *("hset", "hmset", "hsetnx", "hdel", "hincrby"),
)
_SORTED_SETS: Final = (
    *("zcard", "zcount", "zscore", "zmscore", "zrange", "zrevrange", "zrangebyscore"),
    *("zrevrangebyscore", "zadd", "zrem", "zremrangebyscore", "zremrangebyrank"),
)
_SETS: Final = ("smembers", "sismember", "scard", "sadd", "srem")
_LISTS: Final = (
    *("llen", "lindex", "lrange"),
    *("lpush", "rpush", "lpop", "rpop", "lrem", "ltrim"),
)
_PLAIN: Final = (*_KEYS, *_STRINGS, *_HASHES, *_SORTED_SETS, *_SETS, *_LISTS)
#: Only for servers with vector sets: an unknown command invalidates the whole file.
_VECTOR_SETS: Final = ("vadd", "vrem", "vsim", "vcard", "vgetattr", "vsetattr")
#: Commands on a stream that do not reveal its entries.
_PUT_ON_QUEUE: Final = ("type", "xadd", "xlen", "xpending", "xack", "xinfo|groups", "memory|usage")
_READ_STREAMS: Final = ("xrange", "xrevrange", "xread", "xdel", "xtrim")
_TAKE_FROM_QUEUE: Final = (
    *("xreadgroup", "xclaim", "xautoclaim", "xinfo|consumers", "xinfo|stream"),
    *("xgroup|create", "xgroup|createconsumer", "xgroup|delconsumer"),
)
#: Pattern that matches the hash tag of any partition.
_ANY: Final = "{*}:"
#: For the integrity check, which scans all jobs.
_WALK: Final = ("scan",)


def users_acl(server: RedisServer, home: JobKeys, passwords: Mapping[str, str]) -> str:
    """Returns the file; `home` are the keys of partition 0, passwords are written as SHA-256
    digests.

    With several partitions, jobs may be in any of them, everything else is in partition 0.
    """
    digests = {role: hashlib.sha256(word.encode()).hexdigest() for role, word in passwords.items()}
    return "\n".join(
        [
            # Off and without a password, so no client can log in as this user. Redis itself acts as
            # this user when it loads its append-only file; without these permissions it would
            # discard what scripts wrote.
            "user default off resetpass ~* &* +@all",
            _user(ADMIN, digests[ADMIN], ["~*", "&*", "+@all"]),
            _user(GATEWAY, digests[GATEWAY], _gateway(server, home)),
            _user(WORKER, digests[WORKER], _worker(server, home)),
            "",
        ]
    )


def _user(name: str, digest: str, rules: Sequence[str]) -> str:
    return " ".join(["user", name, "reset", "on", f"#{digest}", *rules])


def _everywhere(home: JobKeys) -> JobKeys:
    """Patterns of the job keys in all partitions."""
    if not home.tag:
        return home
    queue, dead_letters = (name[len(home.tag) :] for name in (home.queue, home.dead_letters))
    return replace(home, queue=_ANY + queue, dead_letters=_ANY + dead_letters, tag=_ANY)


def _gateway(server: RedisServer, home: JobKeys) -> list[str]:
    keys, tag = _everywhere(home), home.tag
    queue = f"~{keys.queue}"
    elsewhere = [
        f"~{keys.queue}:*",
        f"~{keys.dead_letters}",
        f"~{keys.job('*')}",
        f"~{keys.idempotency('*')}",
        f"~{keys.fingerprint('*')}",
        f"~{keys.idempotency('*', '*')}",
        f"~{keys.fingerprint('*', '*')}",
        *_access_keys(keys, tag),
        f"~{upload_key('*', tag)}",
        *(f"~{pattern}" for pattern in (*workflow_key_patterns(tag), *image_key_patterns(tag))),
    ]
    general = (*_connection(server), *_SERVER, *_REPLICATION, *_SCRIPTS)
    general += (*_TRANSACTIONS, *_CHANNELS)
    streams = [*elsewhere, f"~{keys.for_lane('*').stream}"]
    head = ["-@all", queue, *streams, *_channels(keys, tag), *_allow(general, _PUT_ON_QUEUE)]
    if not server.is_at_least(SELECTORS_SINCE):
        documents = [f"~{pattern}" for pattern in document_key_patterns(tag)]
        # Permission to read image results as a consumer group would also permit taking jobs.
        return [*head, *documents, *_allow(_PLAIN, _READ_STREAMS)]
    # Workers own the documents. The gateway only reads them, and no script may name them.
    documents = [f"%R~{pattern}" for pattern in document_key_patterns(tag)]
    own = ["-@all", *elsewhere, *documents, *_allow(_PLAIN, _READ_STREAMS)]
    results = ["-@all", f"~{ImageKeys(tag).results}", *_allow(_TAKE_FROM_QUEUE)]
    return [*head, f"({' '.join(own)})", f"({' '.join(results)})"]


def _worker(server: RedisServer, home: JobKeys) -> list[str]:
    keys, tag = _everywhere(home), home.tag
    patterns = [keys.queue, f"{keys.queue}:*", keys.for_lane("*").stream]
    patterns += [keys.dead_letters, keys.job("*"), upload_key("*", tag)]
    patterns += [*document_key_patterns(tag), tag + WORKFLOW_KEYS_PATTERN, tag + IMAGE_KEYS_PATTERN]
    vectors = _VECTOR_SETS if server.has_vector_sets else ()
    general = (*_connection(server), *_SERVER, *_SCRIPTS, *_TRANSACTIONS, *_CHANNELS, *_WALK)
    return [
        "-@all",
        *(f"~{pattern}" for pattern in patterns),
        *_channels(keys, tag),
        *_allow(general, _PLAIN, _PUT_ON_QUEUE, _READ_STREAMS, _TAKE_FROM_QUEUE, vectors),
    ]


def _channels(keys: JobKeys, tag: str) -> list[str]:
    return [f"&{keys.queue}:*", f"&{WorkflowKeys(tag).wake}"]


def _access_keys(keys: JobKeys, tag: str) -> list[str]:
    access, limits = AccessKeys(tag), AccessKeys(keys.tag)
    names = (
        *(access.records, access.last_used, access.audit_log, limits.rate("*"), limits.active("*")),
        *(access.session("*"), access.sessions("*"), access.token_secret),
    )
    return [f"~{name}" for name in names]


def _connection(server: RedisServer) -> tuple[str, ...]:
    # Redis 6.2 accepts any subcommand name; without the rule it would log a denial per connection.
    unknown = server.is_at_least(SELECTORS_SINCE) and not server.is_at_least(*SETINFO_SINCE)
    return _CONNECTION if unknown else (*_CONNECTION, "client|setinfo")


def _allow(*families: Sequence[str]) -> list[str]:
    return [f"+{command}" for family in families for command in family]
