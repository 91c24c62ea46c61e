"""Converts a snapshot into a Redis data directory with an append-only file.

With `appendonly yes` and no append-only file, Redis starts empty and ignores the snapshot. So a
temporary Redis loads the snapshot with `appendonly no` and then writes the file: a single
file up to 6.2, a directory of files from 7.0 on.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.installer import nofollow
from deploy.installer.errors import InstallError
from deploy.installer.host import Host
from deploy.installer.layout import GROUP, REDIS_USER
from deploy.installer.resp import RedisCommandError, RedisUnavailable, Resp

POLL_S = 0.05
TIMEOUT_S = 1800.0
SNAPSHOT = "dump.rdb"


@dataclass(frozen=True)
class Loaded:
    """Contents of the snapshot."""

    keys: int
    #: Keys that had already expired; 0 if Redis does not count them (before 7.0).
    expired: int


def load(host: Host, server: Path, data: Path) -> Loaded:
    """Loads `data`/dump.rdb and writes the append-only file next to it; raises InstallError."""
    socket_home = Path(tempfile.mkdtemp(prefix="sluice-load-"))
    with nofollow.open_directory(socket_home) as directory:
        host.give(directory, REDIS_USER, GROUP)
    log = socket_home / "log"
    process = _start(host, server, data, socket_home / "s", log)
    try:
        with _connected(process, socket_home / "s", log) as redis:
            info = redis.info("persistence")
            loaded = Loaded(
                keys=redis.number("DBSIZE"), expired=int(info.get("rdb_last_load_keys_expired", 0))
            )
            redis.execute("CONFIG", "SET", "appendonly", "yes")
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
    """Returns a connection once the snapshot is loaded."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            redis = Resp(socket)
        except RedisUnavailable:
            time.sleep(POLL_S)
            continue
        try:
            redis.execute("DBSIZE")
            return redis
        except (RedisCommandError, RedisUnavailable):  # still loading
            redis.close()
            time.sleep(POLL_S)
    exists = nofollow.is_file(log)  # in a directory of the server
    last = nofollow.read_text(log, errors="replace").splitlines()[-3:] if exists else []
    raise InstallError(
        f"Redis cannot read the snapshot: {' | '.join(last)}",
        "Use a Redis at least as new as the one that wrote it, or use another backup.",
    )


def _wait_until_written(redis: Resp) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        info = redis.info("persistence")
        busy = info["aof_rewrite_in_progress"], info["aof_rewrite_scheduled"]
        if busy == ("0", "0"):
            break
        if time.monotonic() > deadline:
            raise InstallError(
                "Redis did not finish writing its append-only file",
                "Check whether the disk is slow or full.",
            )
        time.sleep(POLL_S)
    if info["aof_enabled"] != "1" or info["aof_last_bgrewrite_status"] != "ok":
        raise InstallError(
            "Redis could not write its append-only file", "Check free disk space: df -h"
        )


def _shut_down(redis: Resp) -> None:
    with contextlib.suppress(
        RedisUnavailable
    ):  # the server closes the connection instead of replying
        redis.execute("SHUTDOWN", "NOSAVE")
