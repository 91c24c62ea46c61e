"""deploy/install.sh below a directory: what it writes, keeps, refuses and rolls back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.installer import redis_server
from tests.support.deploy.fake_machine import FakeMachine, fake_redis

ROOT = Path(__file__).parents[2]
INSTALL_SH = ROOT / "deploy" / "install.sh"


def test_a_dry_run_shows_every_difference_and_writes_nothing(machine: FakeMachine) -> None:
    assert machine.install("--dry-run") == 0
    assert not machine.root.exists()
    assert "+maxmemory-policy noeviction" in machine.output
    assert "+user gateway reset on #" in machine.output
    assert f"+++ {machine.root}/etc/systemd/system/redis-gateway.service" in machine.output
    assert "would: enable and start redis.service" in machine.output
    assert "unix://" not in machine.output, "a password was printed"


def test_a_dry_run_shows_only_what_would_be_done(machine: FakeMachine) -> None:
    assert machine.install("--dry-run", "--no-start") == 0
    assert "would: enable redis.service" in machine.output
    image = FakeMachine(machine.root, has_systemd=False)
    assert image.install("--dry-run") == 0
    assert "would: enable" not in image.output
    assert image.install() == 0
    assert image.systemd.enabled == set()


def test_the_layout_matches_the_units(machine: FakeMachine) -> None:
    assert machine.install() == 0
    assert machine.mode("/etc/sluice") == 0o755
    assert machine.mode("/etc/sluice/credentials") == 0o700
    for role in ("gateway", "worker", "admin"):
        assert machine.mode(f"/etc/sluice/credentials/{role}.redis_url") == 0o600
    assert machine.mode("/etc/sluice/users.acl") == 0o640
    assert machine.mode("/etc/sluice/gateway.env") == 0o640
    assert machine.mode("/var/lib/sluice/redis") == 0o700
    for home, entry in (("redis-gateway", "main.py"), ("redis-worker", "echo_worker.py")):
        assert (machine.layout.at("/opt") / home / entry).is_file()
        assert (machine.layout.at("/opt") / home / "venv" / "bin" / "python").is_file()
    assert os.readlink(machine.layout.command) == "/opt/redis-gateway/sluice"
    assert machine.mode("/opt/redis-gateway/sluice") == 0o755
    assert machine.systemd.active == machine.systemd.enabled
    assert "redis-gateway.socket" in machine.systemd.active


def test_a_second_run_reports_no_changes(machine: FakeMachine) -> None:
    machine.install()
    before, machine.systemd.commands = machine.tree(), []
    assert machine.install() == 0
    assert "no changes" in machine.output
    assert machine.install("--dry-run") == 0
    assert "no changes" in machine.output
    assert machine.tree() == before
    assert machine.systemd.commands == []


def test_passwords_are_random_kept_and_hashed_in_the_acl(machine: FakeMachine) -> None:
    machine.install()
    urls = {
        role: machine.layout.redis_url(role).read_text() for role in ("gateway", "worker", "admin")
    }
    passwords = {role: urlsplit(url).password or "" for role, url in urls.items()}
    assert len(set(passwords.values())) == 3
    assert all(len(password) >= 40 for password in passwords.values())
    acl = machine.layout.users_acl.read_text()
    for role, password in passwords.items():
        assert urls[role] == f"unix://{role}:{password}@/run/sluice/redis.sock\n"
        assert password not in acl
        assert f"user {role} reset on #{hashlib.sha256(password.encode()).hexdigest()}" in acl
    with machine.release("0.1.0-next"):
        machine.run("upgrade")
    assert {role: machine.layout.redis_url(role).read_text() for role in urls} == urls


def test_operator_settings_are_never_overwritten(machine: FakeMachine) -> None:
    machine.install()
    own = {"gateway.env": "JOB_TTL_S=60\n", "worker.env": "# own\n", "redis-local.conf": "# m\n"}
    for name, content in own.items():
        (machine.layout.config / name).write_text(content)
    with machine.release("0.1.0-next"):
        assert machine.run("upgrade") == 0
    assert {name: (machine.layout.config / name).read_text() for name in own} == own


def test_a_renamed_queue_is_named_in_the_access_rules(machine: FakeMachine) -> None:
    machine.install()
    (machine.layout.config / "gateway.env").write_text('QUEUE_STREAM_KEY="work"\n')
    machine.install()
    acl = machine.layout.users_acl.read_text()
    assert "~work ~work:*" in acl
    assert "jobs:stream" not in acl
    assert "restart redis.service" in machine.systemd.commands


# -- Redis --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14"])
def test_an_old_redis_is_refused_with_instructions(
    machine: FakeMachine, redis: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_redis(redis, version)
    assert machine.install("--redis-server", redis) == 69
    error = capsys.readouterr().err
    assert f"is Redis {version}; 6.2 or newer is required" in error
    assert "make -C redis-stable -j2 USE_SYSTEMD=yes" in error
    assert "--redis-server /path" in error
    assert not machine.root.exists()


def test_no_redis_at_all(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(redis_server, "DEFAULT_PATHS", ())
    assert machine.install() == 69
    assert "apt-get install redis-server" in capsys.readouterr().err


def test_another_program_is_refused_as_redis_server(
    machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    assert machine.install("--redis-server", other) == 78
    assert machine.install("--redis-server", tmp_path / "nothing") == 78
    assert "--redis-server" in capsys.readouterr().err


def test_another_redis_server_gets_a_drop_in(machine: FakeMachine, tmp_path: Path) -> None:
    built = fake_redis(tmp_path / "built", "8.4.0", notifies=False)
    assert machine.install("--redis-server", built, "--redis-port", "6390") == 0
    drop_in = (machine.layout.units / "redis.service.d" / "50-install.conf").read_text()
    assert f"ExecStart=\nExecStart={built} /etc/sluice/redis.conf\n" in drop_in
    assert "Type=exec" in drop_in
    assert "PrivateNetwork=no" in drop_in
    assert "IPAddressAllow=localhost" in drop_in
    assert "port 6390" in machine.layout.redis_conf.read_text()
    # The next run keeps the options.
    machine.install()
    assert "no changes" in machine.output


@pytest.mark.parametrize("installed", [True, False])
def test_data_of_a_newer_redis_is_refused(
    machine: FakeMachine, redis: Path, installed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older Redis would silently start empty."""
    machine.install()
    (machine.layout.redis_data / "appendonlydir").mkdir()
    if not installed:
        machine.run("uninstall")
    fake_redis(redis, "6.2.14")
    before = machine.tree()
    assert machine.install() == 78
    assert "cannot read it" in capsys.readouterr().err
    assert machine.tree() == before
    fake_redis(redis, "7.2.0")
    assert machine.install() == 0


def alias(machine: FakeMachine) -> tuple[Path, Path]:
    """Links of Debian's redis-server.service when it is enabled."""
    target = Path("/lib/systemd/system/redis-server.service")
    links = (
        machine.layout.units / "redis.service",
        machine.layout.units / "multi-user.target.wants" / "redis-server.service",
    )
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    return links


def test_debians_redis_is_disabled_and_restored(machine: FakeMachine) -> None:
    unit, wanted = alias(machine)
    assert machine.install("--dry-run") == 0
    assert "would: stop and disable redis-server.service" in machine.output
    assert unit.is_symlink()
    assert machine.install() == 0
    assert not unit.is_symlink()
    assert "Redis for Sluice" in unit.read_text()
    assert not wanted.is_symlink()
    assert json.loads(machine.layout.manifest.read_text())["foreign_redis_enabled"] is True
    machine.install()
    assert "no changes" in machine.output
    assert machine.run("uninstall", "--yes") == 0
    assert unit.is_symlink()
    assert wanted.is_symlink()


def test_a_later_purge_does_not_change_debians_redis(machine: FakeMachine) -> None:
    """redis.service is an alias of it, and the name of Sluice's unit."""
    links = alias(machine)
    machine.install()
    machine.run("uninstall")
    machine.systemd.active.add("redis.service")
    machine.systemd.enabled.add("redis.service")
    machine.systemd.commands = []
    assert machine.run("uninstall", "--purge", "--yes") == 0
    assert all(link.is_symlink() for link in links)
    assert not [line for line in machine.systemd.commands if "redis.service" in line]
    assert not machine.layout.state.exists()


def test_uninstall_removes_worker_instances(machine: FakeMachine) -> None:
    machine.install()
    instance = "redis-worker@gpu.service"
    wanted = machine.layout.units / "multi-user.target.wants" / instance
    wanted.parent.mkdir()
    wanted.symlink_to(machine.layout.units / "redis-worker@.service")
    drop_in = machine.layout.units / f"{instance}.d" / "override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\n")
    machine.systemd.active.add(instance)
    machine.systemd.enabled.add(instance)
    assert machine.run("uninstall") == 0
    assert f"stop {instance}" in machine.systemd.commands
    assert f"disable {instance}" in machine.systemd.commands
    assert not drop_in.exists()


def test_an_unknown_redis_unit_is_not_replaced(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.layout.units.mkdir(parents=True)
    (machine.layout.units / "redis.service").write_text("[Service]\n")
    before = machine.tree()
    assert machine.install() == 78
    assert "not installed by Sluice" in capsys.readouterr().err
    assert machine.tree() == before


# -- releases -----------------------------------------------------------------------------------


def test_a_failed_step_rolls_back_the_earlier_ones(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    alias(machine)
    before = {name: entry for name, entry in machine.tree().items() if entry[1]}
    machine.builder.fails = True
    assert machine.install() == 1
    assert "Check the internet." in capsys.readouterr().err
    assert {name: entry for name, entry in machine.tree().items() if entry[1]} == before
    machine.builder.fails = False
    assert machine.install() == 0


def test_an_upgrade_restarts_what_changed_and_keeps_two_releases(machine: FakeMachine) -> None:
    machine.install()
    machine.systemd.active.add("redis-worker@gpu.service")
    machine.systemd.commands = []
    for name in ("0.1.0-second", "0.1.0-third"):
        with machine.release(name):
            assert machine.run("upgrade") == 0
    assert "restart redis-gateway.service" in machine.systemd.commands
    assert "restart redis-worker@gpu.service" in machine.systemd.commands
    assert "restart redis.service" not in machine.systemd.commands
    for home in (machine.layout.gateway_home, machine.layout.worker_home):
        assert os.readlink(home / "venv") == "releases/0.1.0-third/venv"
        kept = {path.name for path in (home / "releases").iterdir()}
        assert kept == {"0.1.0-second", "0.1.0-third"}


def test_a_broken_release_is_rolled_back(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install()
    before, machine.systemd.commands = machine.tree(), []
    with machine.release("0.2.0-broken"):
        assert machine.run("upgrade") == 70
    error = capsys.readouterr().err
    assert "/readyz returned 503" in error
    assert "release 0.1.0-first was restored" in error
    assert machine.tree() == before
    restarts = [
        line for line in machine.systemd.commands if line == "restart redis-gateway.service"
    ]
    assert len(restarts) == 2  # one for the upgrade, one for the rollback
    assert machine.install() == 0
    assert "no changes" in machine.output


def test_upgrade_requires_an_installation(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.run("upgrade") == 78
    assert "install.sh install" in capsys.readouterr().err


def test_an_incomplete_release_is_rebuilt(machine: FakeMachine) -> None:
    half = machine.layout.gateway_home / "releases" / "0.1.0-first" / "venv"
    half.mkdir(parents=True)
    (half / "rubbish").write_text("")
    assert machine.install() == 0
    assert not (half / "rubbish").exists()


def test_a_disabled_unit_stays_disabled(machine: FakeMachine) -> None:
    machine.install()
    machine.systemd.active.discard("redis-echo-worker.service")
    machine.systemd.enabled.discard("redis-echo-worker.service")
    with machine.release("0.1.0-second"):
        assert machine.run("upgrade") == 0
    assert "redis-echo-worker.service" not in machine.systemd.active | machine.systemd.enabled


# -- listen address ------------------------------------------------------------------------------


def test_a_public_address_prints_a_hint_about_api_keys(machine: FakeMachine) -> None:
    assert machine.install("--listen", "0.0.0.0:9000") == 0
    drop_in = machine.layout.units / "redis-gateway.socket.d" / "50-install.conf"
    assert drop_in.read_text().endswith("[Socket]\nListenStream=\nListenStream=0.0.0.0:9000\n")
    assert "needs an API key" in machine.output
    assert "sluice key create" in machine.output
    machine.install()
    assert "no changes" in machine.output
    machine.systemd.commands = []
    assert machine.install("--listen", "127.0.0.1:8080") == 0
    assert not drop_in.parent.exists()
    assert "restart redis-gateway.socket" in machine.systemd.commands


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", ":80"])
def test_an_invalid_listen_address_is_refused(
    machine: FakeMachine, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.install("--listen", listen) == 78
    assert "for example 127.0.0.1:8080" in capsys.readouterr().err
    assert not machine.root.exists()


# -- uninstall ----------------------------------------------------------------------------------


def test_uninstall_keeps_only_the_data(machine: FakeMachine) -> None:
    machine.install("--listen", "0.0.0.0:9000")
    (machine.layout.redis_data / "dump.rdb").write_text("jobs")
    assert machine.run("uninstall", "--dry-run") == 0
    assert "would: remove" in machine.output
    assert machine.run("uninstall") == 0
    assert str(machine.layout.redis_data) in machine.output
    files = [name for name, (_, content) in machine.tree().items() if content]
    assert files == ["var/lib/sluice/redis/dump.rdb"]
    assert not any("sluice" in name and "var" not in name for name in machine.tree())
    assert machine.systemd.active == machine.systemd.enabled == set()
    # The next installation uses the data again.
    assert machine.install() == 0
    assert (machine.layout.redis_data / "dump.rdb").read_text() == "jobs"


def test_purge_asks_for_confirmation_and_removes_everything(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install()
    (machine.layout.redis_data / "dump.rdb").write_text("jobs")
    monkeypatch.setattr("os.isatty", lambda _: False)
    assert machine.run("uninstall", "--purge") == 78
    assert "--yes" in capsys.readouterr().err
    assert machine.run("uninstall", "--purge", "--yes") == 0
    assert not machine.layout.state.exists()
    assert machine.run("uninstall") == 78  # nothing is installed


def test_only_a_purge_removes_undelivered_webhooks(machine: FakeMachine) -> None:
    machine.install()
    machine.layout.logs.mkdir(parents=True)
    dead_letters = machine.layout.logs / "workflow_webhook_dlq.jsonl"
    dead_letters.write_text("{}")
    assert machine.run("uninstall") == 0
    assert dead_letters.is_file()
    machine.install()
    assert machine.run("uninstall", "--purge", "--yes") == 0
    assert not machine.layout.logs.exists()


def test_uninstall_keeps_custom_handlers(machine: FakeMachine) -> None:
    machine.install()
    (machine.layout.handlers / "own.py").write_text("x = 1\n")
    assert machine.run("uninstall") == 0
    assert (machine.layout.handlers / "own.py").is_file()
    assert list(machine.layout.worker_home.iterdir()) == [machine.layout.handlers]


def test_status_shows_the_release(machine: FakeMachine) -> None:
    assert machine.run("status") == 3
    machine.install()
    assert machine.run("status") == 0
    assert "0.1.0-first" in machine.output


def test_install_requires_root(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deploy.installer import cli

    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert cli.main(["install"]) == 77
    assert "sudo" in capsys.readouterr().err


# -- install.sh ---------------------------------------------------------------------------------


def sh(*words: str, cwd: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path is not None else {})}
    command = ["/bin/sh", str(INSTALL_SH), *words]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )


def test_it_runs_from_any_directory(tmp_path: Path) -> None:
    for name in ("deploy", "common"):  # unrelated packages of the same name
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(9)\n")
    done = sh("--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "exit codes:" in done.stdout
    assert sh("status", "--root", str(tmp_path / "machine"), cwd=tmp_path).returncode == 3


def test_it_needs_the_standard_library_only() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import deploy.installer.cli"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_missing_python_prints_instructions(tmp_path: Path) -> None:
    for tool in ("dirname", "sh"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    done = sh("install", cwd=tmp_path, path=str(tmp_path))
    assert done.returncode == 69
    assert "apt-get install python3 python3-venv" in done.stderr
    done = sh("install", "--python", "/nowhere/python", cwd=tmp_path)
    assert done.returncode == 69
    assert "--python" in done.stderr
