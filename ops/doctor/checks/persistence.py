"""Checks of persistence in Redis: append-only file, writes and disk."""

from __future__ import annotations

from pathlib import Path

from sluice.common.text import plural
from sluice.ops.doctor.checks.host import read_only
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import Machine
from sluice.ops.terminal import format_bytes

#: During a rewrite the append-only file needs about twice its size.
REWRITE_FACTOR = 2
LEAST_FREE_BYTES = 200 << 20
_OK = "ok"
#: Fields of INFO with the status of the last write, and their meaning.
_WRITE_STATUSES = {
    "aof_last_write_status": "write to the append-only file",
    "aof_last_bgrewrite_status": "rewrite of the append-only file",
    "rdb_last_bgsave_status": "snapshot",
}


@check(
    "redis.append_only",
    "the append-only file is enabled and synced at least every second",
    "`redis-cli CONFIG SET appendonly yes`, `redis-cli CONFIG SET appendfsync everysec`, and the "
    "same lines in redis.conf",
)
def append_only(machine: Machine) -> Finding:
    """Without the append-only file, a restart of Redis loses jobs."""
    server = machine.server
    if server.setting("appendonly") != "yes":
        return fail(
            "appendonly no",
            "when Redis stops, all jobs since its last snapshot are lost",
            server.how_to_set("appendonly", "yes"),
        )
    fsync = server.setting("appendfsync")
    if fsync == "no":
        return warn(
            "appendonly yes, appendfsync no",
            "the system decides when to write; a power cut may lose half a minute of jobs",
            server.how_to_set("appendfsync", "everysec"),
        )
    return ok(f"appendonly yes, appendfsync {fsync}")


@check(
    "redis.last_write",
    "the last write, rewrite and snapshot succeeded",
    "free disk space (`df -h`), then `redis-cli BGREWRITEAOF`; see the log: `journalctl -u redis`",
)
def last_write(machine: Machine) -> Finding:
    """After a failed write, Redis may refuse all further writes."""
    server = machine.server
    failed = [
        what
        for name, what in _WRITE_STATUSES.items()
        if str(server.info.get(name, _OK)).lower() != _OK
    ]
    if not failed:
        return ok("the last writes to disk succeeded")
    return fail(
        f"the last {' and '.join(failed)} failed",
        "the disk is full, read-only, or not writable for Redis; Redis may refuse all writes",
        f"df -h {_directory(machine)}; {machine.remedies.redis_log(server.target)}; then "
        f"{server.target.cli} BGREWRITEAOF",
    )


@check(
    "redis.fsync",
    "the disk is fast enough for the writes of Redis",
    "use a faster disk (NVMe instead of an SD card), or reduce other writes to it",
)
def fsync(machine: Machine) -> Finding:
    """Redis, and all jobs, wait for a slow disk."""
    server = machine.server
    delayed = server.number("aof_delayed_fsync")
    fork_ms = server.number("latest_fork_usec") / 1000
    if delayed:
        return note(
            f"Redis waited for the disk {plural(delayed, 'time')} since it started",
            "the disk is too slow for the writes; all jobs are delayed",
            "iostat -x 5, and move the data directory to a faster disk",
        )
    if fork_ms > 1000:
        return warn(
            f"the last fork took {fork_ms:.0f} ms",
            "Redis blocks while it forks for a rewrite; hugepages make forks slower",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok(f"no delayed writes; the last fork took {fork_ms:.0f} ms")


@check(
    "redis.disk",
    "the disk has space for the append-only file and its rewrite",
    "free space in the directory of `redis-cli CONFIG GET dir`, or move the directory",
)
def disk(machine: Machine) -> Finding:
    """A full disk stops Redis and all jobs."""
    server = machine.local_server
    directory = _directory(machine)
    if directory is None:
        raise CheckSkipped("Redis does not report its data directory")
    space = machine.disk_space(directory)
    size = server.number("aof_current_size") or server.number("used_memory")
    seen = f"{format_bytes(space.free_bytes)} free in {directory}, files of {format_bytes(size)}"
    fix = f"df -h {directory}; du -xh {directory} | sort -h | tail"
    if space.read_only:
        return read_only(seen)
    if space.free_bytes < max(size, LEAST_FREE_BYTES / 4):
        return fail(seen, "the next rewrite of the append-only file will not fit", fix)
    if space.free_bytes < max(size * REWRITE_FACTOR, LEAST_FREE_BYTES):
        return warn(seen, "a rewrite of the append-only file may not fit", fix)
    return ok(seen)


def _directory(machine: Machine) -> Path | None:
    try:
        found = machine.server.setting("dir")
    except CheckSkipped:
        return None
    return machine.path(found) if found else None


CHECKS = (append_only, last_write, fsync, disk)
