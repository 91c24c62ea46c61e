"""redis.conf for the server that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.installer.layout import SOCKET
from deploy.installer.redis_server import RedisServer

_MEGABYTE: Final = 1 << 20
#: Of the box's memory. On a Jetson the GPU lives from the same.
MEMORY_SHARE: Final = 4
LEAST_MEGABYTES: Final = 64

_HEAD = """\
# Written by deploy/install.sh for Redis {version}, and written anew by every run of it.
# What you want otherwise goes into redis-local.conf beside this file: it is read last and wins.
"""

_LISTEN = """
# -- Who can reach it: members of the group sluice, by a socket in the file system.
unixsocket {socket}
unixsocketperm 770
port {port}
bind 127.0.0.1 -::1
protected-mode yes
aclfile /etc/sluice/users.acl
acl-pubsub-default resetchannels
timeout 0
tcp-keepalive 60
maxclients 1000
"""

_PROCESS = """
# -- How it runs: systemd starts it, the journal keeps its words.
daemonize no
supervised {supervised}
logfile ""
loglevel notice
always-show-logo no
set-proc-title yes
databases 1
"""

_KEEP = """
# -- What it keeps: every change, on the disk before it is answered. Who asks at the same time waits
# for the disk together. With `appendfsync everysec` in redis-local.conf nobody waits: a power cut
# costs up to two seconds of accepted work then, and so does a killed Redis where the disk is slow.
dir /var/lib/sluice/redis
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-use-rdb-preamble yes
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
# A snapshot now and then besides; it must never stop the writes when it fails.
save 3600 1
save 300 10000
stop-writes-on-bgsave-error no
rdbcompression yes
rdbchecksum yes
dbfilename dump.rdb
"""

_MEMORY = """
# -- Memory: a quarter of the box. A full Redis refuses new jobs; it never throws one away.
maxmemory {megabytes}mb
maxmemory-policy noeviction
# One node of this size is set aside for each small events stream.
stream-node-max-bytes 1024
stream-node-max-entries 100
client-output-buffer-limit normal 64mb 16mb 30
client-output-buffer-limit pubsub 32mb 8mb 60
lazyfree-lazy-expire yes
lazyfree-lazy-server-del yes
lazyfree-lazy-user-del yes
"""

_WATCH = """
# -- What it remembers of slow moments: SLOWLOG GET, LATENCY DOCTOR.
slowlog-log-slower-than 10000
slowlog-max-len 256
latency-monitor-threshold 50
hz 10
dynamic-hz yes
"""

_SINCE_7 = """
# -- Since Redis 7.
appenddirname appendonlydir
shutdown-timeout 10
maxmemory-clients 10%
enable-debug-command no
enable-module-command no
enable-protected-configs no
"""

_TAIL = """
include /etc/sluice/redis-local.conf
"""

LOCAL_CONF: Final = """\
# Your own settings for Sluice's Redis; they win over redis.conf, which is written by the
# installer. This file is yours: it is made once and never changed. After an edit:
#   systemctl restart redis.service
#
# maxmemory 2gb
# appendfsync everysec
"""


def redis_conf(server: RedisServer, port: int, memory_bytes: int) -> str:
    """The whole file."""
    megabytes = max(memory_bytes // MEMORY_SHARE // _MEGABYTE, LEAST_MEGABYTES)
    supervised = "systemd" if server.notifies else "no"
    return "".join(
        [
            _HEAD.format(version=server.version_text),
            _LISTEN.format(socket=SOCKET, port=port),
            _PROCESS.format(supervised=supervised),
            _KEEP,
            _MEMORY.format(megabytes=megabytes),
            _WATCH,
            _SINCE_7 if server.is_at_least(7) else "",
            _TAIL,
        ]
    )


def memory_of_box() -> int:
    """All of its memory, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0
