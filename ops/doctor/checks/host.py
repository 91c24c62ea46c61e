"""Checks of the host: Python, disk, memory, limits, clock, and kernel settings for Redis."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from sluice.common.process.host import Host
from sluice.common.text import plural
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import NOT_FOUND, TIMED_OUT, Machine
from sluice.ops.terminal import format_bytes

OLDEST_PYTHON = (3, 10)
#: Free share of a file system below which there is a warning, and a failure.
TIGHT_DISK, FULL_DISK = 0.10, 0.03
LEAST_FREE_BYTES = 100 << 20
#: Available share of memory below which there is a warning, and a failure.
TIGHT_MEMORY, NO_MEMORY = 0.10, 0.04
#: Memory pressure (PSI `full avg10`, percent) for a warning, and for a failure.
PRESSED, HARD_PRESSED = 5.0, 20.0
#: Share of swap in use above which there is a warning.
SWAPPED = 0.25
#: Open files of a process in addition to its connections.
SPARE_FILES = 100
_DATA_DIRS = ("/var/lib/sluice",)
_HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


@check(
    "host.python", "Python is 3.10 or newer", "install a newer Python and run `make setup` again"
)
def python(machine: Machine) -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= OLDEST_PYTHON:
        return ok(f"Python {found}")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    fix = f"install Python {oldest} or newer and run `make setup`"
    return fail(f"Python {found}", f"Sluice needs Python {oldest} or newer", fix)


@check(
    "host.disk",
    "the data directory is writable and has free space and inodes",
    "`df -h`, `df -i`; delete or move large files; after a disk error remount or repair",
)
def disk(machine: Machine) -> Finding:
    """The disk of the data directory, or of the working directory if there is none."""
    directory = _data_directory(machine)
    space = machine.disk_space(directory)
    share = space.free_bytes / space.total_bytes if space.total_bytes else 1.0
    inode_share = space.free_inodes / space.inodes if space.inodes else 1.0
    seen = f"{format_bytes(space.free_bytes)} ({share:.0%}) and {inode_share:.0%} of inodes free"
    seen = f"{seen} in {directory}"
    if space.read_only:
        return read_only(seen)
    fix = f"df -h {directory}; df -i {directory}; sudo journalctl --vacuum-size=200M"
    if share < FULL_DISK or inode_share < FULL_DISK or space.free_bytes < LEAST_FREE_BYTES:
        return fail(seen, "the disk is almost full; writes will fail soon", fix)
    if share < TIGHT_DISK or inode_share < TIGHT_DISK:
        return warn(seen, "the disk is getting full", fix)
    return ok(seen)


def read_only(seen: str) -> Finding:
    """The finding of a file system that is mounted read-only."""
    cause = "the file system is read-only, possibly after a disk error"
    return fail(seen, cause, "sudo dmesg | tail -50; then remount or repair it (fsck)")


def _data_directory(machine: Machine) -> Path:
    named = machine.environ.get("SLUICE_DATA_DIR")
    for name in (*((named,) if named else ()), *_DATA_DIRS):
        path = Path(name) if name == named else machine.path(name)
        if path.exists():
            return path
    return Path.cwd()


@check(
    "host.memory",
    "enough memory is available, and no memory pressure (PSI)",
    "`ps axo rss,comm --sort -rss | head`; a smaller model, fewer workers, or `MIN_AVAILABLE_MB`",
)
def memory(machine: Machine) -> Finding:
    """On a Jetson, CPU and GPU share the memory."""
    known = _meminfo(machine)
    total, available = known.get("MemTotal", 0), known.get("MemAvailable", 0)
    if not total:
        raise CheckSkipped("/proc/meminfo cannot be read")
    pressure = Host(machine.root).read().memory_pressure
    share = available / total
    seen = f"{format_bytes(available)} of {format_bytes(total)} available"
    if pressure is not None:
        seen = f"{seen}, pressure {pressure:.1f} %"
    fix = "ps axo rss,pid,comm --sort -rss | head; set MIN_AVAILABLE_MB to refuse jobs in time"
    if share < NO_MEMORY or (pressure or 0) >= HARD_PRESSED:
        return fail(seen, "processes stall, or the kernel will kill some", fix)
    if share < TIGHT_MEMORY or (pressure or 0) >= PRESSED:
        return warn(seen, "memory is running low", fix)
    return ok(seen)


@check(
    "host.swap",
    "Redis is not being swapped out",
    "`sudo sysctl vm.swappiness=1`; find the processes that use the memory",
)
def swap(machine: Machine) -> Finding:
    """A swapped-out Redis takes seconds to answer."""
    known = _meminfo(machine)
    total = known.get("SwapTotal", 0)
    if not known:
        raise CheckSkipped("/proc/meminfo cannot be read")
    if not total:
        return ok("no swap")
    used = total - known.get("SwapFree", 0)
    seen = f"{format_bytes(used)} of {format_bytes(total)} in use"
    if used > total * SWAPPED:
        cause = "memory was low; Redis is slow for data in swap"
        return warn(seen, cause, "sudo sysctl vm.swappiness=1; ps axo rss,pid,comm --sort -rss")
    return ok(seen)


@check(
    "host.overcommit",
    "the kernel allows Redis to fork (`vm.overcommit_memory` is 1)",
    "`sudo sysctl vm.overcommit_memory=1`, and the same in /etc/sysctl.d/60-sluice.conf",
)
def overcommit(machine: Machine) -> Finding:
    """A rewrite of the append-only file forks, which reserves as much memory again."""
    value = machine.read("/proc/sys/vm/overcommit_memory")
    if value is None:
        raise CheckSkipped("this kernel has no such setting")
    seen = f"vm.overcommit_memory={value}"
    if value == "1":
        return ok(seen)
    fix = (
        "sudo sysctl vm.overcommit_memory=1; permanently: echo vm.overcommit_memory=1 | sudo tee "
        "/etc/sysctl.d/60-sluice.conf"
    )
    cause = "when memory is low, Redis cannot fork to rewrite its append-only file"
    return warn(seen, cause, fix) if value == "2" else note(seen, cause, fix)


@check(
    "host.hugepages",
    "transparent hugepages are not enabled for all processes",
    f"`echo madvise | sudo tee {_HUGEPAGES}`",
)
def hugepages(machine: Machine) -> Finding:
    """With transparent hugepages, forks of Redis are slow and copy more memory."""
    value = machine.read(_HUGEPAGES)
    if value is None:
        raise CheckSkipped("this kernel has no transparent hugepages")
    if "[always]" not in value:
        return ok(value)
    return note(
        value,
        "after a fork, Redis copies 2 MB for each changed byte, which costs latency and memory",
        f"echo madvise | sudo tee {_HUGEPAGES}",
    )


@check(
    "host.files",
    "the limit of open files allows for the gateway's maximum number of connections",
    "`ulimit -n 65536`, or `LimitNOFILE=` in a drop-in of the unit",
)
def files(machine: Machine) -> Finding:
    """Each connection is a file. This is the limit of the shell; units have other limits."""
    needed = machine.gateway_settings.max_connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = (machine.read("/proc/sys/fs/file-nr") or "").split()
    if len(used) == 3 and int(used[0]) > int(used[2]) * 0.9:
        return fail(
            f"{used[0]} of {plural(int(used[2]), 'file')} are open on this machine",
            "no process will be able to open files or connections soon",
            "sudo sysctl fs.file-max=2000000; find the processes: sudo lsof | awk '{print $1}' | "
            "sort | uniq -c | sort -n | tail",
        )
    seen = f"{plural(soft, 'open file')} (hard limit {hard})"
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return ok(seen)
    return note(
        seen,
        f"too low for MAX_CONNECTIONS={needed - SPARE_FILES} of a gateway started from this shell",
        f"ulimit -n {min(needed, hard) if hard > 0 else needed}",
    )


@check(
    "host.clock",
    "the clock is synchronised",
    "`sudo timedatectl set-ntp true`",
)
def clock(machine: Machine) -> Finding:
    """Without a battery-backed clock, a machine starts with a wrong time."""
    if machine.path("/run/systemd/timesync/synchronized").exists():
        return ok("synchronised")
    output = machine.run(("timedatectl", "show", "-p", "NTPSynchronized", "--value"), 5.0)
    if output.code in (NOT_FOUND, TIMED_OUT) or output.text.strip() not in ("yes", "no"):
        raise CheckSkipped("timedatectl is not available")
    if output.text.strip() == "yes":
        return ok("synchronised")
    return warn(
        "not synchronised",
        "after a power cut the time may be off by years; jobs expire or start at the wrong time",
        "sudo timedatectl set-ntp true; timedatectl timesync-status",
    )


def _meminfo(machine: Machine) -> dict[str, int]:
    found = {}
    for line in (machine.read("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    return found


CHECKS = (python, disk, memory, swap, overcommit, hugepages, files, clock)
