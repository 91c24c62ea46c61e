"""Redis: what is left of jobs after a crash or a power cut."""

from __future__ import annotations

from pathlib import Path

from ops.doctor.box import Box
from ops.doctor.finding import Finding, Unable, check, fail, note, ok, warn
from ops.doctor.text import megabytes, plural

#: A rewrite of the append-only file needs about its size again.
REWRITE_ROOM = 2
LEAST_FREE_BYTES = 200 << 20
_GOOD = "ok"
#: Fields of INFO that tell how the last writing went, and what it was.
_LAST = {
    "aof_last_write_status": "write to the append-only file",
    "aof_last_bgrewrite_status": "rewrite of the append-only file",
    "rdb_last_bgsave_status": "snapshot",
}


@check(
    "redis.append_only",
    "the append-only file is on and written at least every second",
    "`redis-cli CONFIG SET appendonly yes`, `redis-cli CONFIG SET appendfsync everysec`, and the "
    "same lines in redis.conf",
)
def append_only(box: Box) -> Finding:
    """Without it a restart of Redis loses jobs."""
    server = box.server
    if server.setting("appendonly") != "yes":
        return fail(
            "appendonly no",
            "when Redis stops, all jobs since its last snapshot are lost",
            server.change("appendonly", "yes"),
        )
    fsync = server.setting("appendfsync")
    if fsync == "no":
        return warn(
            "appendonly yes, appendfsync no",
            "the system writes when it likes: a power cut may lose half a minute of jobs",
            server.change("appendfsync", "everysec"),
        )
    return ok(f"appendonly yes, appendfsync {fsync}")


@check(
    "redis.last_write",
    "the last write, rewrite and snapshot went well",
    "free disk space (`df -h`), then `redis-cli BGREWRITEAOF`; the log says more: `journalctl -u "
    "redis`",
)
def last_write(box: Box) -> Finding:
    """After a failed write Redis refuses all others."""
    server = box.server
    failed = [
        what for name, what in _LAST.items() if str(server.info.get(name, _GOOD)).lower() != _GOOD
    ]
    if not failed:
        return ok("the last writes to disk went well")
    return fail(
        f"the last {' and '.join(failed)} failed",
        "the disk is full, read-only or not Redis' to write; Redis may refuse every change",
        f"df -h {_directory(box)}; {box.remedies.redis_log(server.target)}; then "
        f"{server.target.cli} BGREWRITEAOF",
    )


@check(
    "redis.fsync",
    "the disk keeps up with what Redis writes",
    "a faster disk (NVMe rather than SD card), or less else that writes to it",
)
def fsync(box: Box) -> Finding:
    """Redis waits for a slow disk, and all jobs with it."""
    server = box.server
    delayed = server.number("aof_delayed_fsync")
    fork_ms = server.number("latest_fork_usec") / 1000
    if delayed:
        return note(
            f"Redis had to wait for the disk {plural(delayed, 'time')} since it started",
            "the disk is slower than the writes; all jobs wait meanwhile",
            "iostat -x 5, and move the data directory to a faster disk",
        )
    if fork_ms > 1000:
        return warn(
            f"the last fork took {fork_ms:.0f} ms",
            "Redis stands still while it forks for a rewrite; hugepages make that slower",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok(f"no write was delayed; the last fork took {fork_ms:.0f} ms")


@check(
    "redis.disk",
    "there is room for the append-only file and its rewrite",
    "free some space where `redis-cli CONFIG GET dir` says, or move it",
)
def disk(box: Box) -> Finding:
    """A full disk stops Redis, and with it everything."""
    server = box.local_server
    directory = _directory(box)
    if directory is None:
        raise Unable("Redis does not say where its files are")
    try:
        space = box.disk(directory)
    except OSError as error:
        raise Unable(f"{directory}: {error.strerror}") from None
    size = server.number("aof_current_size") or server.number("used_memory")
    seen = f"{megabytes(space.free_bytes)} free in {directory}, files of {megabytes(size)}"
    fix = f"df -h {directory}; du -xh {directory} | sort -h | tail"
    if space.read_only:
        cause = "the file system is read-only, perhaps after an error of the disk"
        return fail(seen, cause, "sudo dmesg | tail -50; then remount or repair it (fsck)")
    if space.free_bytes < max(size, LEAST_FREE_BYTES / 4):
        return fail(seen, "the next rewrite of the append-only file will not fit", fix)
    if space.free_bytes < max(size * REWRITE_ROOM, LEAST_FREE_BYTES):
        return warn(seen, "there is hardly room for a rewrite of the append-only file", fix)
    return ok(seen)


def _directory(box: Box) -> Path | None:
    try:
        found = box.server.setting("dir")
    except Unable:
        return None
    return box.path(found) if found else None


CHECKS = (append_only, last_write, fsync, disk)
