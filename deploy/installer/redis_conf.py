"""Generates redis.conf for the installed server version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.installer.layout import SOCKET
from deploy.installer.redis_server import RedisServer

_MEGABYTE: Final = 1 << 20
#: Redis may use one part in this many of the host's memory. On a Jetson the GPU shares it.
MEMORY_SHARE: Final = 4
MIN_MEGABYTES: Final = 64

_HEAD = """\
# Written by deploy/install.sh for {release}; every run rewrites it.
# Put your changes into redis-local.conf in this directory: it is read last and takes precedence.
"""

_LISTEN = """
# -- Access: a Unix socket for members of the group sluice.
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
# -- Process: started by systemd, logs to the journal.
daemonize no
supervised {supervised}
logfile ""
loglevel notice
always-show-logo no
set-proc-title yes
databases 1
"""

_PERSISTENCE = """
# -- Persistence: every change is on disk before Redis replies; concurrent clients share a sync.
# `appendfsync everysec` in redis-local.conf is faster, but a power cut may lose two seconds of
# accepted jobs, and on a slow disk so may a killed Redis.
dir /var/lib/sluice/redis
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-use-rdb-preamble yes
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
# Additional snapshots; a failed snapshot must not stop writes.
save 3600 1
save 300 10000
stop-writes-on-bgsave-error no
rdbcompression yes
rdbchecksum yes
dbfilename dump.rdb
"""

_MEMORY = """
# -- Memory: a quarter of the host. A full Redis refuses new jobs; it never evicts one.
maxmemory {megabytes}mb
maxmemory-policy noeviction
# Redis allocates one node of this size for each small event stream.
stream-node-max-bytes 1024
stream-node-max-entries 100
client-output-buffer-limit normal 64mb 16mb 30
client-output-buffer-limit pubsub 32mb 8mb 60
lazyfree-lazy-expire yes
lazyfree-lazy-server-del yes
lazyfree-lazy-user-del yes
"""

_DIAGNOSTICS = """
# -- Diagnostics: SLOWLOG GET, LATENCY DOCTOR.
slowlog-log-slower-than 10000
slowlog-max-len 256
latency-monitor-threshold 50
hz 10
dynamic-hz yes
"""

_SINCE_7 = """
# -- Redis 7 and newer.
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
# Your settings for Sluice's Redis. They override redis.conf, which the installer rewrites.
# The installer creates this file once and never changes it. After an edit:
#   systemctl restart redis.service
#
# maxmemory 2gb
# appendfsync everysec
"""


def redis_conf(server: RedisServer, port: int, memory_bytes: int) -> str:
    megabytes = max(memory_bytes // MEMORY_SHARE // _MEGABYTE, MIN_MEGABYTES)
    supervised = "systemd" if server.notifies else "no"
    return "".join(
        [
            _HEAD.format(release=server.release),
            _LISTEN.format(socket=SOCKET, port=port),
            _PROCESS.format(supervised=supervised),
            _PERSISTENCE,
            _MEMORY.format(megabytes=megabytes),
            _DIAGNOSTICS,
            _SINCE_7 if server.is_at_least(7) else "",
            _TAIL,
        ]
    )


def total_memory() -> int:
    """Memory of the host in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0
