"""Checks of the host on a fake machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.doctor.checks import host
from ops.doctor.finding import CheckSkipped, Health
from ops.doctor.machine import Disk, disk_of
from tests.ops.doctor.machines import (
    GB,
    ROOMY,
    commands,
    finding_of,
    make_machine,
    status_of,
    write,
)


def test_python_version(tmp_path: Path) -> None:
    assert status_of(host.python, make_machine(tmp_path)) is Health.OK


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
    assert status_of(host.disk, make_machine(tmp_path, disk=lambda path: disk)) is status


def test_disk_of_the_data_directory(tmp_path: Path) -> None:
    seen: list[Path] = []

    def disk(path: Path) -> Disk:
        seen.append(path)
        return ROOMY

    finding_of(host.disk, make_machine(tmp_path, disk=disk))
    (tmp_path / "var/lib/sluice").mkdir(parents=True)
    finding_of(host.disk, make_machine(tmp_path, disk=disk))
    finding_of(
        host.disk, make_machine(tmp_path, disk=disk, environ={"SLUICE_DATA_DIR": str(tmp_path)})
    )
    assert seen == [Path.cwd(), tmp_path / "var/lib/sluice", tmp_path]


def test_unreadable_disk_is_skipped(tmp_path: Path) -> None:
    def gone(path: Path) -> Disk:
        raise OSError(5, "Input/output error")

    with pytest.raises(CheckSkipped, match="Input/output"):
        host.disk.run(make_machine(tmp_path, disk=gone))
    assert disk_of(tmp_path).total_bytes > 0


@pytest.mark.parametrize(
    ("available_kb", "pressure", "status"),
    [
        (4_000_000, None, Health.OK),
        (4_000_000, "0.50", Health.OK),
        (600_000, "0.00", Health.WARN),
        (100_000, "0.00", Health.FAIL),
        (4_000_000, "7.00", Health.WARN),
        (4_000_000, "45.00", Health.FAIL),
    ],
)
def test_memory(tmp_path: Path, available_kb: int, pressure: str | None, status: Health) -> None:
    write(tmp_path, "/proc/meminfo", f"MemTotal: 8000000 kB\nMemAvailable: {available_kb} kB\n")
    if pressure is not None:
        lines = f"some avg10=99.00 avg60=1\nfull avg10={pressure} avg60=0.00 total=1\n"
        write(tmp_path, "/proc/pressure/memory", lines)
    found = finding_of(host.memory, make_machine(tmp_path))
    assert found.status is status
    assert ("pressure" in found.seen) == (pressure is not None)


def test_missing_meminfo_is_skipped(tmp_path: Path) -> None:
    for check in (host.memory, host.swap):
        with pytest.raises(CheckSkipped):
            check.run(make_machine(tmp_path))


@pytest.mark.parametrize(
    ("total", "free", "status"),
    [(0, 0, Health.OK), (1000, 900, Health.OK), (1000, 100, Health.WARN)],
)
def test_swap(tmp_path: Path, total: int, free: int, status: Health) -> None:
    write(tmp_path, "/proc/meminfo", f"SwapTotal: {total} kB\nSwapFree: {free} kB\n")
    assert status_of(host.swap, make_machine(tmp_path)) is status


@pytest.mark.parametrize(
    ("value", "status"), [("1\n", Health.OK), ("0\n", Health.NOTE), ("2\n", Health.WARN)]
)
def test_overcommit(tmp_path: Path, value: str, status: Health) -> None:
    write(tmp_path, "/proc/sys/vm/overcommit_memory", value)
    found = finding_of(host.overcommit, make_machine(tmp_path))
    assert found.status is status
    assert ("sysctl vm.overcommit_memory=1" in found.fix) == (status is not Health.OK)


def test_hugepages(tmp_path: Path) -> None:
    with pytest.raises(CheckSkipped):
        host.hugepages.run(make_machine(tmp_path))
    file = "/sys/kernel/mm/transparent_hugepage/enabled"
    write(tmp_path, file, "always [madvise] never\n")
    assert status_of(host.hugepages, make_machine(tmp_path)) is Health.OK
    write(tmp_path, file, "[always] madvise never\n")
    assert status_of(host.hugepages, make_machine(tmp_path)) is Health.NOTE


def test_files(tmp_path: Path) -> None:
    assert status_of(host.files, make_machine(tmp_path)) in (Health.OK, Health.NOTE)
    write(tmp_path, "/proc/sys/fs/file-nr", "99000\t0\t100000\n")
    assert status_of(host.files, make_machine(tmp_path)) is Health.FAIL


def test_file_limit_below_max_connections(tmp_path: Path) -> None:
    settings = make_machine(tmp_path).gateway_settings.model_copy(
        update={"max_connections": 1 << 40}
    )
    found = finding_of(host.files, make_machine(tmp_path, gateway_settings=settings))
    assert found.status is Health.NOTE
    assert found.fix.startswith("ulimit -n ")


@pytest.mark.parametrize(("value", "status"), [("yes", Health.OK), ("no", Health.WARN)])
def test_clock(tmp_path: Path, value: str, status: Health) -> None:
    assert (
        status_of(host.clock, make_machine(tmp_path, run=commands(timedatectl=f"{value}\n")))
        is status
    )


def test_clock_without_timedatectl(tmp_path: Path) -> None:
    for run in (commands(), commands(timedatectl="Failed to connect to bus\n")):
        with pytest.raises(CheckSkipped):
            host.clock.run(make_machine(tmp_path, run=run))
    write(tmp_path, "/run/systemd/timesync/synchronized")
    assert status_of(host.clock, make_machine(tmp_path)) is Health.OK
