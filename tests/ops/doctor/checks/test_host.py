"""Checks of the host on a fake machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.ops.doctor.checks import host
from sluice.ops.doctor.finding import Check, Health
from sluice.ops.doctor.machine import Disk, disk_of
from tests.ops.doctor.machines import (
    GB,
    ROOMY,
    commands,
    expect,
    expect_skipped,
    finding_of,
    make_machine,
    write,
)

OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
SYSCTL = "sysctl vm.overcommit_memory=1"
Files = dict[str, str]


def memory(available_kb: int, pressure: str = "") -> Files:
    files = {"/proc/meminfo": f"MemTotal: 8000000 kB\nMemAvailable: {available_kb} kB\n"}
    if pressure:
        lines = f"some avg10=99.00 avg60=1\nfull avg10={pressure} avg60=0.00 total=1\n"
        files["/proc/pressure/memory"] = lines
    return files


def swap(total_kb: int, free_kb: int) -> Files:
    return {"/proc/meminfo": f"SwapTotal: {total_kb} kB\nSwapFree: {free_kb} kB\n"}


@pytest.mark.parametrize(
    ("check", "files", "status", "fix"),
    [
        (host.python, {}, Health.OK, ""),
        (host.memory, memory(4_000_000), Health.OK, ""),
        (host.memory, memory(4_000_000, "0.50"), Health.OK, ""),
        (host.memory, memory(600_000, "0.00"), Health.WARN, ""),
        (host.memory, memory(100_000, "0.00"), Health.FAIL, ""),
        (host.memory, memory(4_000_000, "7.00"), Health.WARN, ""),
        (host.memory, memory(4_000_000, "45.00"), Health.FAIL, ""),
        (host.swap, swap(0, 0), Health.OK, ""),
        (host.swap, swap(1000, 900), Health.OK, ""),
        (host.swap, swap(1000, 100), Health.WARN, ""),
        (host.overcommit, {OVERCOMMIT: "1\n"}, Health.OK, ""),
        (host.overcommit, {OVERCOMMIT: "0\n"}, Health.NOTE, SYSCTL),
        (host.overcommit, {OVERCOMMIT: "2\n"}, Health.WARN, SYSCTL),
        (host.hugepages, {HUGEPAGES: "always [madvise] never\n"}, Health.OK, ""),
        (host.hugepages, {HUGEPAGES: "[always] madvise never\n"}, Health.NOTE, ""),
        (host.files, {"/proc/sys/fs/file-nr": "99000\t0\t100000\n"}, Health.FAIL, ""),
        (host.clock, {"/run/systemd/timesync/synchronized": ""}, Health.OK, ""),
    ],
)
def test_findings_from_files(
    tmp_path: Path, check: Check, files: Files, status: Health, fix: str
) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    found = expect(check, make_machine(tmp_path), status, fix=fix)
    assert ("pressure" in found.seen) == ("/proc/pressure/memory" in files)


@pytest.mark.parametrize("check", [host.memory, host.swap, host.hugepages])
def test_missing_files_are_skipped(tmp_path: Path, check: Check) -> None:
    expect_skipped(check, make_machine(tmp_path))


@pytest.mark.parametrize(
    ("disk", "status"),
    [
        (ROOMY, Health.OK),
        (Disk(100 * GB, 5 * GB, 1000, 900, False), Health.WARN),
        (Disk(100 * GB, GB, 1000, 900, False), Health.FAIL),
        (Disk(100 * GB, 50 * GB, 1000, 10, False), Health.FAIL),
        (Disk(100 * GB, 50 * GB, 1000, 50, False), Health.WARN),
        (Disk(100 << 20, 50 << 20, 0, 0, False), Health.FAIL),
        (Disk(100 * GB, 50 * GB, 1000, 900, True), Health.FAIL),
        (Disk(0, 1 << 40, 0, 0, False), Health.OK),  # a file system that does not count
    ],
)
def test_disk(tmp_path: Path, disk: Disk, status: Health) -> None:
    expect(host.disk, make_machine(tmp_path, disk=lambda path: disk), status)


def test_disk_of_the_data_directory(tmp_path: Path) -> None:
    seen: list[Path] = []

    def disk(path: Path) -> Disk:
        seen.append(path)
        return ROOMY

    finding_of(host.disk, make_machine(tmp_path, disk=disk))
    (tmp_path / "var/lib/sluice").mkdir(parents=True)
    finding_of(host.disk, make_machine(tmp_path, disk=disk))
    environ = {"SLUICE_DATA_DIR": str(tmp_path)}
    finding_of(host.disk, make_machine(tmp_path, disk=disk, environ=environ))
    assert seen == [Path.cwd(), tmp_path / "var/lib/sluice", tmp_path]


def test_unreadable_disk_is_skipped(tmp_path: Path) -> None:
    def gone(path: Path) -> Disk:
        raise OSError(5, "Input/output error")

    expect_skipped(host.disk, make_machine(tmp_path, disk=gone), "Input/output")
    assert disk_of(tmp_path).total_bytes > 0


@pytest.mark.parametrize(
    ("connections", "status", "fix"), [(1, Health.OK, ""), (1 << 40, Health.NOTE, "ulimit -n ")]
)
def test_file_limit(tmp_path: Path, connections: int, status: Health, fix: str) -> None:
    limit = {"max_connections": connections}
    settings = make_machine(tmp_path).gateway_settings.model_copy(update=limit)
    found = expect(host.files, make_machine(tmp_path, gateway_settings=settings), status)
    assert found.fix.startswith(fix)


@pytest.mark.parametrize(
    ("output", "status"),
    [("yes\n", Health.OK), ("no\n", Health.WARN), ("Failed to connect to bus\n", None)],
)
def test_clock(tmp_path: Path, output: str, status: Health | None) -> None:
    machine = make_machine(tmp_path, run=commands(timedatectl=output))
    if status is None:
        expect_skipped(host.clock, machine)
    else:
        expect(host.clock, machine, status)
    expect_skipped(host.clock, make_machine(tmp_path))  # without timedatectl
