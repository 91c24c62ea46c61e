"""Turns a snapshot into the data directory of a Redis with its append-only file on.

A Redis that finds no append-only file while `appendonly yes` is set starts empty, and ignores the
snapshot beside it. So the snapshot is read by a Redis of our own with `appendonly no`, which then
is told to write the file: one file up to 6.2, a directory of them from 7.0 on.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.installer.errors import InstallError
from deploy.installer.host import Host
from deploy.installer.layout import GROUP, REDIS_USER
from deploy.installer.resp import RedisAway, RedisRefused, Resp

POLL_S = 0.05
TIMEOUT_S = 1800.0
SNAPSHOT = "dump.rdb"


@dataclass(frozen=True)
class Loaded:
    """What was in the snapshot."""

    keys: int
    #: Whose time was over; 0 where Redis does not count them (before 7.0).
    expired: int


def load(host: Host, server: Path, data: Path) -> Loaded:
    """Read `data`/dump.rdb and write the append-only file beside it; raises InstallError."""
    socket_home = Path(tempfile.mkdtemp(prefix="sluice-load-"))
    host.give(socket_home, REDIS_USER, GROUP)
    log = socket_home / "log"
    process = _start(host, server, data, socket_home / "s", log)
    try:
        with _connected(process, socket_home / "s", log) as redis:
            facts = redis.info("persistence")
            loaded = Loaded(
                keys=redis.number("DBSIZE"), expired=int(facts.get("rdb_last_load_keys_expired", 0))
            )
            redis.say("CONFIG", "SET", "appendonly", "yes")
            _wait_until_written(redis)
            _shut_down(redis)
        process.wait(60)
        return loaded
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        shutil.rmtree(socket_home, ignore_errors=True)


def _start(
    host: Host, server: Path, data: Path, socket: Path, log: Path
) -> subprocess.Popen[bytes]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "dir": str(data),
        "dbfilename": SNAPSHOT,
        "save": "",
        "appendonly": "no",
        "logfile": str(log),
        "daemonize": "no",
        "stream-node-max-bytes": "1024",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [str(server), *words]
    if not host.is_live:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=data)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        cwd=data,
        user=REDIS_USER,
        group=GROUP,
        extra_groups=[],
        umask=0o077,
    )


def _connected(process: subprocess.Popen[bytes], socket: Path, log: Path) -> Resp:
    """Once everything is read, however long that takes."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            redis = Resp(socket)
        except RedisAway:
            time.sleep(POLL_S)
            continue
        try:
            redis.say("DBSIZE")
            return redis
        except (RedisRefused, RedisAway):  # loading
            redis.close()
            time.sleep(POLL_S)
    last = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
    raise InstallError(
        f"Redis does not read the snapshot: {' | '.join(last)}",
        "A snapshot of a newer Redis needs a Redis as new; a damaged one: take another backup.",
    )


def _wait_until_written(redis: Resp) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        facts = redis.info("persistence")
        busy = facts["aof_rewrite_in_progress"], facts["aof_rewrite_scheduled"]
        if busy == ("0", "0"):
            break
        if time.monotonic() > deadline:
            raise InstallError("Redis does not finish its append-only file", "Is the disk slow?")
        time.sleep(POLL_S)
    if facts["aof_enabled"] != "1" or facts["aof_last_bgrewrite_status"] != "ok":
        raise InstallError("Redis could not write its append-only file", "Is the disk full? df -h")


def _shut_down(redis: Resp) -> None:
    with contextlib.suppress(RedisAway):  # that is its answer
        redis.say("SHUTDOWN", "NOSAVE")
