"""The life of an installation: install, install again, upgrade, back up, remove."""

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

#: Exit code of the installer after a rollback.
ROLLED_BACK = 70
KEPT = ("/var/lib/sluice",)


@pytest.fixture(scope="module")
def host(unpacked: Layers, work_directory: Path) -> Iterator[Machine]:
    """A machine without Sluice."""
    with booted(unpacked, work_directory) as machine:
        yield machine


@pytest.fixture(scope="module")
def pristine(host: Machine) -> Listing:
    """The state before the installation."""
    return listing(host)


def finished_job(host: Machine, text: str) -> str:
    """Runs a job; returns its id."""
    job_id: str = post(host, text)["job_id"]
    wait_until(host, job_id, "done")
    return job_id


def processes(host: Machine) -> dict[str, str]:
    """Main process id of each service."""
    return {unit: host.prop(unit, "MainPID") for unit in SERVICES}


def release(host: Machine, work_directory: Path, version: str, *, is_broken: bool = False) -> str:
    """Copies another release of the project; returns the options that install it."""

    def change(project: Path) -> None:
        pyproject = project / "pyproject.toml"
        pyproject.write_text(
            pyproject.read_text().replace('version = "0.1.0"', f'version = "{version}"')
        )
        if is_broken:
            main = project / "gateway" / "main.py"
            main.write_text(main.read_text() + '\nraise RuntimeError("a release gone wrong")\n')

    project = copy_project(work_directory / f"project-{version}", change)
    wheels = wheelhouse(project, work_directory / f"wheelhouse-{version}")
    host.copy_in(project, f"/root/sluice-{version}")
    host.copy_in(wheels, f"/root/wheelhouse-{version}")
    return f"/root/sluice-{version}"


class TestLifecycle:
    """The tests run in this order; each starts where the previous one ended."""

    def test_dry_run_shows_everything_and_does_nothing(
        self, host: Machine, pristine: Listing
    ) -> None:
        result = install(host, "--dry-run").stdout
        for file in ("redis-gateway.service", "redis.conf", "users.acl"):
            assert file in result
        assert pristine.changes_until(listing(host)) == []

    def test_install(self, host: Machine, pristine: Listing) -> None:
        install(host)
        assert host.run(f"systemctl is-active {' '.join(UNITS)}").stdout.split() == ["active"] * 4
        finished_job(host, "first")

    def test_second_install_changes_nothing(self, host: Machine, pristine: Listing) -> None:
        before, running = listing(host), processes(host)
        install(host)
        assert before.changes_until(listing(host), except_below=KEPT) == []
        assert processes(host) == running

    def test_dry_run_after_install_shows_no_difference(
        self, host: Machine, pristine: Listing
    ) -> None:
        result = install(host, "--dry-run").stdout
        assert not [line for line in result.splitlines() if line.startswith(("+", "-", "@@"))], (
            result
        )

    def test_upgrade_refuses_no_request(self, host: Machine, work_directory: Path) -> None:
        project = release(host, work_directory, "0.1.1")
        with load(host) as report:
            installer(host, "upgrade --wheelhouse /root/wheelhouse-0.1.1 --yes", project=project)
        assert "0.1.1" in host.run("sluice --version").stdout
        assert report.connection_troubles == []
        assert_each_done_once(host, report)

    def test_broken_release_is_rolled_back(self, host: Machine, work_directory: Path) -> None:
        project = release(host, work_directory, "0.1.2", is_broken=True)
        with load(host) as report:
            result = installer(
                host,
                "upgrade --wheelhouse /root/wheelhouse-0.1.2 --yes",
                project=project,
                code=None,
            )
        assert result.code == ROLLED_BACK, result
        assert "0.1.1" in host.run("sluice --version").stdout
        assert host.prop(GATEWAY, "ActiveState") == "active"
        assert report.connection_troubles == []
        assert_each_done_once(host, report)

    def test_backup_and_restore(self, host: Machine) -> None:
        before = finished_job(host, "before the backup")
        installer(host, "backup /root/jobs.backup")
        after = finished_job(host, "after the backup")
        installer(host, "restore /root/jobs.backup --yes")
        assert job(host, before)["status"] == "done"
        assert job(host, after).get("status") == 404
        finished_job(host, "after the restore")

    def test_uninstall_leaves_nothing_but_the_data(self, host: Machine, pristine: Listing) -> None:
        kept = finished_job(host, "kept")
        installer(host, "uninstall --yes")
        assert pristine.changes_until(listing(host), except_below=KEPT) == []
        assert "redis" in host.run("ls /var/lib/sluice").stdout.split()
        assert host.run("redis-cli PING").stdout.strip() == "PONG"
        install(host)
        assert job(host, kept)["status"] == "done"

    def test_purge_leaves_nothing(self, host: Machine, pristine: Listing) -> None:
        installer(host, "uninstall --purge --yes")
        assert pristine.changes_until(listing(host)) == []
        assert host.run("redis-cli PING").stdout.strip() == "PONG"

    def test_purge_afterwards_leaves_the_distributions_redis_alone(
        self, host: Machine, pristine: Listing
    ) -> None:
        host.run("mkdir -p /var/lib/sluice/redis")
        running = host.prop("redis-server.service", "MainPID")
        installer(host, "uninstall --purge --yes")
        assert pristine.changes_until(listing(host)) == []
        assert host.prop("redis-server.service", "MainPID") == running
