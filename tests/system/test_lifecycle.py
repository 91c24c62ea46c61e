"""A machine's whole life with Sluice: installed, installed again, upgraded, backed up, removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.listing import Listing, listing
from tests.system.machine import Layers, Machine, booted
from tests.system.sluice import (
    GATEWAY,
    SERVICES,
    UNITS,
    assert_each_done_once,
    install,
    installer,
    job,
    load,
    post,
    wait_until,
)
from tests.system.wheelhouse import copy_project, wheelhouse

#: The installer's exit code for an upgrade that was taken back.
ROLLED_BACK = 70
OURS_TO_KEEP = ("/var/lib/sluice",)


@pytest.fixture(scope="module")
def box(unpacked: Layers, workplace: Path) -> Iterator[Machine]:
    """A machine with nothing of ours installed."""
    with booted(unpacked, workplace) as machine:
        yield machine


@pytest.fixture(scope="module")
def pristine(box: Machine) -> Listing:
    """What was on it before."""
    return listing(box)


def finished_job(box: Machine, text: str) -> str:
    """The id of a job that has just ended."""
    job_id: str = post(box, text)["job_id"]
    wait_until(box, job_id, "done")
    return job_id


def processes(box: Machine) -> dict[str, str]:
    """Which process is behind each service."""
    return {unit: box.prop(unit, "MainPID") for unit in SERVICES}


def release(box: Machine, workplace: Path, version: str, *, is_broken: bool = False) -> str:
    """Another release of the project, on board; the options that install it."""

    def change(project: Path) -> None:
        pyproject = project / "pyproject.toml"
        pyproject.write_text(
            pyproject.read_text().replace('version = "0.1.0"', f'version = "{version}"')
        )
        if is_broken:
            main = project / "gateway" / "main.py"
            main.write_text(main.read_text() + '\nraise RuntimeError("a release gone wrong")\n')

    project = copy_project(workplace / f"project-{version}", change)
    wheels = wheelhouse(project, workplace / f"wheelhouse-{version}")
    box.copy_in(project, f"/root/sluice-{version}")
    box.copy_in(wheels, f"/root/wheelhouse-{version}")
    return f"/root/sluice-{version}"


class TestLife:
    """In this order; each step begins where the one before it ended."""

    def test_dry_run_shows_everything_and_does_nothing(
        self, box: Machine, pristine: Listing
    ) -> None:
        told = install(box, "--dry-run").stdout
        for file in ("redis-gateway.service", "redis.conf", "users.acl"):
            assert file in told
        assert pristine.changes_until(listing(box)) == []

    def test_install(self, box: Machine, pristine: Listing) -> None:
        install(box)
        assert box.run(f"systemctl is-active {' '.join(UNITS)}").stdout.split() == ["active"] * 4
        finished_job(box, "first")

    def test_second_install_changes_nothing(self, box: Machine, pristine: Listing) -> None:
        before, running = listing(box), processes(box)
        install(box)
        assert before.changes_until(listing(box), except_below=OURS_TO_KEEP) == []
        assert processes(box) == running

    def test_dry_run_after_install_shows_no_difference(
        self, box: Machine, pristine: Listing
    ) -> None:
        told = install(box, "--dry-run").stdout
        assert not [line for line in told.splitlines() if line.startswith(("+", "-", "@@"))], told

    def test_upgrade_refuses_no_request(self, box: Machine, workplace: Path) -> None:
        project = release(box, workplace, "0.1.1")
        with load(box) as report:
            installer(box, "upgrade --wheelhouse /root/wheelhouse-0.1.1 --yes", project=project)
        assert "0.1.1" in box.run("sluice --version").stdout
        assert report.connection_troubles == []
        assert_each_done_once(box, report)

    def test_broken_release_is_rolled_back(self, box: Machine, workplace: Path) -> None:
        project = release(box, workplace, "0.1.2", is_broken=True)
        with load(box) as report:
            told = installer(
                box, "upgrade --wheelhouse /root/wheelhouse-0.1.2 --yes", project=project, code=None
            )
        assert told.code == ROLLED_BACK, told
        assert "0.1.1" in box.run("sluice --version").stdout
        assert box.prop(GATEWAY, "ActiveState") == "active"
        assert report.connection_troubles == []
        assert_each_done_once(box, report)

    def test_backup_and_restore(self, box: Machine) -> None:
        before = finished_job(box, "before the backup")
        installer(box, "backup /root/jobs.backup")
        after = finished_job(box, "after the backup")
        installer(box, "restore /root/jobs.backup --yes")
        assert job(box, before)["status"] == "done"
        assert job(box, after).get("status") == 404
        finished_job(box, "after the restore")

    def test_uninstall_leaves_nothing_but_the_data(self, box: Machine, pristine: Listing) -> None:
        kept = finished_job(box, "kept")
        installer(box, "uninstall --yes")
        assert pristine.changes_until(listing(box), except_below=OURS_TO_KEEP) == []
        assert "redis" in box.run("ls /var/lib/sluice").stdout.split()
        assert box.run("redis-cli PING").stdout.strip() == "PONG"
        install(box)
        assert job(box, kept)["status"] == "done"

    def test_purge_leaves_nothing(self, box: Machine, pristine: Listing) -> None:
        installer(box, "uninstall --purge --yes")
        assert pristine.changes_until(listing(box)) == []
        assert box.run("redis-cli PING").stdout.strip() == "PONG"

    def test_purge_afterwards_leaves_the_distributions_redis_alone(
        self, box: Machine, pristine: Listing
    ) -> None:
        box.run("mkdir -p /var/lib/sluice/redis")
        running = box.prop("redis-server.service", "MainPID")
        installer(box, "uninstall --purge --yes")
        assert pristine.changes_until(listing(box)) == []
        assert box.prop("redis-server.service", "MainPID") == running
