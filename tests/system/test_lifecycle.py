"""The life of an installation: install, install again, upgrade, back up, remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.common.version import VERSION
from tests.system.listing import Listing, listing
from tests.system.machine import Machine
from tests.system.sluice import (
    GATEWAY,
    SERVICES,
    UNITS,
    assert_each_done_once,
    install,
    installer,
    job,
    load,
    run_job,
    states,
)
from tests.system.wheelhouse import copy_project, wheelhouse

#: Exit code of the installer after a rollback.
ROLLED_BACK = 70
KEPT = ("/var/lib/sluice",)


def processes(host: Machine) -> dict[str, str]:
    return {unit: host.prop(unit, "MainPID") for unit in SERVICES}


def upgrade(host: Machine, directory: Path, version: str, *, is_broken: bool = False) -> int:
    """Upgrades to another release while customers post jobs; returns the exit code."""

    def change(project: Path) -> None:
        file = project / "common" / "version.py"
        file.write_text(file.read_text().replace(f'"{VERSION}"', f'"{version}"'))
        if is_broken:
            main = project / "gateway" / "main.py"
            main.write_text(main.read_text() + '\nraise RuntimeError("a release gone wrong")\n')

    project = copy_project(directory / f"project-{version}", change)
    wheels = wheelhouse(project, directory / f"wheelhouse-{version}")
    host.copy_in(project, f"/root/sluice-{version}")
    host.copy_in(wheels, f"/root/wheelhouse-{version}")
    command = f"upgrade --wheelhouse /root/wheelhouse-{version} --yes"
    with load(host) as report:
        result = installer(host, command, project=f"/root/sluice-{version}", code=None)
    assert report.connection_troubles == [], result
    assert_each_done_once(host, report)
    return result.code


@pytest.mark.usefixtures("pristine")
class TestLifecycle:
    """The tests run in this order; each starts where the previous one ended."""

    def test_dry_run_shows_everything_and_does_nothing(
        self, host: Machine, pristine: Listing
    ) -> None:
        result = install(host, "--dry-run").stdout
        for file in ("redis-gateway.service", "redis.conf", "users.acl"):
            assert file in result
        assert pristine.changes_until(listing(host)) == []

    def test_install(self, host: Machine) -> None:
        install(host)
        assert states(host, *UNITS) == ["active"] * 4
        run_job(host, "first")

    def test_second_install_changes_nothing(self, host: Machine) -> None:
        before, running = listing(host), processes(host)
        install(host)
        assert before.changes_until(listing(host), except_below=KEPT) == []
        assert processes(host) == running
        output = install(host, "--dry-run").stdout
        assert not [line for line in output.splitlines() if line.startswith(("+", "-", "@@"))]

    def test_upgrade_refuses_no_request(self, host: Machine, work_directory: Path) -> None:
        assert upgrade(host, work_directory, "0.1.1") == 0
        assert "0.1.1" in host.run("sluice --version").stdout

    def test_broken_release_is_rolled_back(self, host: Machine, work_directory: Path) -> None:
        assert upgrade(host, work_directory, "0.1.2", is_broken=True) == ROLLED_BACK
        assert "0.1.1" in host.run("sluice --version").stdout
        assert host.prop(GATEWAY, "ActiveState") == "active"

    def test_backup_and_restore(self, host: Machine) -> None:
        before = run_job(host, "before the backup")
        installer(host, "backup /root/jobs.backup")
        after = run_job(host, "after the backup")
        installer(host, "restore /root/jobs.backup --yes")
        assert job(host, before)["status"] == "done"
        assert job(host, after).get("status") == 404
        run_job(host, "after the restore")

    def test_uninstall_leaves_nothing_but_the_data(self, host: Machine, pristine: Listing) -> None:
        kept = run_job(host, "kept")
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
        # A purge afterwards leaves the distribution's Redis alone.
        host.run("mkdir -p /var/lib/sluice/redis")
        running = host.prop("redis-server.service", "MainPID")
        installer(host, "uninstall --purge --yes")
        assert pristine.changes_until(listing(host)) == []
        assert host.prop("redis-server.service", "MainPID") == running
