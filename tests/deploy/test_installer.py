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

from deploy.installer import cli, redis_server
from deploy.installer.layout import REDIS_ROLES
from deploy.installer.plan import keys_of
from sluice.common.contracts.jobs import JobKeys
from tests.support.deploy.fake_machine import FIRST_RELEASE, FakeMachine, fake_redis

ROOT = Path(__file__).parents[2]
INSTALL_SH = ROOT / "deploy" / "install.sh"


def test_a_dry_run_shows_every_difference_and_writes_nothing(machine: FakeMachine) -> None:
    assert machine.install("--dry-run") == 0
    assert "+maxmemory-policy noeviction" in machine.output
    assert "+user gateway reset on #" in machine.output
    assert f"+++ {machine.root}/etc/systemd/system/redis-gateway.service" in machine.output
    assert "would: enable and start redis.service" in machine.output
    assert "unix://" not in machine.output, "a password was printed"
    assert machine.install("--dry-run", "--no-start") == 0
    assert "would: enable redis.service" in machine.output
    assert not machine.root.exists()


def test_a_host_without_systemd_enables_nothing(machine: FakeMachine) -> None:
    image = FakeMachine(machine.root, has_systemd=False)
    assert image.install("--dry-run") == 0
    assert "would: enable" not in image.output
    assert image.install() == 0
    assert image.systemd.enabled == set()


def test_the_layout_matches_the_units(machine: FakeMachine) -> None:
    assert machine.install() == 0
    modes = {
        "/etc/sluice": 0o755,
        "/etc/sluice/credentials": 0o700,
        **{f"/etc/sluice/credentials/{role}.redis_url": 0o600 for role in REDIS_ROLES},
        "/etc/sluice/users.acl": 0o640,
        "/etc/sluice/gateway.env": 0o640,
        "/var/lib/sluice/redis": 0o700,
        "/opt/redis-gateway/sluice": 0o755,
    }
    assert {path: machine.mode(path) for path in modes} == modes
    for home, entry in (("redis-gateway", "main.py"), ("redis-worker", "echo_worker.py")):
        assert (machine.layout.at("/opt") / home / entry).is_file()
        assert (machine.layout.at("/opt") / home / "venv" / "bin" / "python").is_file()
    assert os.readlink(machine.layout.command) == "/opt/redis-gateway/sluice"
    assert machine.systemd.active == machine.systemd.enabled
    assert "redis-gateway.socket" in machine.systemd.active


def test_gateway_and_workers_share_the_image_directory(machine: FakeMachine) -> None:
    machine.install()
    for name in ("spool", "store"):
        assert machine.mode(f"/var/lib/sluice-images/{name}") == 0o770
    for unit in ("redis-gateway.service", "redis-worker@.service"):
        text = (machine.layout.units / unit).read_text()
        assert "Environment=IMAGE_SPOOL_DIR=/var/lib/sluice-images/spool\n" in text
        assert "Environment=IMAGE_STORE_DIR=/var/lib/sluice-images/store\n" in text
        assert "ReadWritePaths=-/var/lib/sluice-images\n" in text


@pytest.mark.parametrize(("version", "is_off"), [("6.2.0", True), ("7.2.0", False)])
def test_the_image_consumer_is_off_before_redis_7(
    machine: FakeMachine, redis: Path, version: str, is_off: bool
) -> None:
    fake_redis(redis, version)
    machine.install()
    drop_in = machine.layout.units / "redis-gateway.service.d" / "50-install.conf"
    assert drop_in.exists() is is_off
    if is_off:
        assert "\n[Service]\nEnvironment=IMAGE_CONSUMER=false\n" in drop_in.read_text()


def test_a_second_run_reports_no_changes(machine: FakeMachine) -> None:
    machine.install()
    machine.systemd.commands = []
    with machine.unchanged():
        for options in ((), ("--dry-run",)):
            assert machine.install(*options) == 0
            assert "no changes" in machine.output
    assert machine.systemd.commands == []


def test_passwords_are_random_and_hashed_in_the_acl(machine: FakeMachine) -> None:
    machine.install()
    urls = {role: machine.layout.redis_url(role).read_text() for role in REDIS_ROLES}
    passwords = {role: urlsplit(url).password or "" for role, url in urls.items()}
    assert len(set(passwords.values())) == 3
    acl = machine.layout.users_acl.read_text()
    for role, password in passwords.items():
        assert len(password) >= 40
        assert urls[role] == f"unix://{role}:{password}@/run/sluice/redis.sock\n"
        assert password not in acl
        assert f"user {role} reset on #{hashlib.sha256(password.encode()).hexdigest()}" in acl


def test_passwords_and_settings_are_never_overwritten(machine: FakeMachine) -> None:
    machine.install()
    own = {"gateway.env": "JOB_TTL_S=60\n", "worker.env": "# own\n", "redis-local.conf": "# m\n"}
    for name, content in own.items():
        (machine.layout.config / name).write_text(content)
    kept = [*own, *(f"credentials/{role}.redis_url" for role in REDIS_ROLES)]
    before = {name: (machine.layout.config / name).read_text() for name in kept}
    assert machine.upgrade("0.1.0-next") == 0
    assert {name: (machine.layout.config / name).read_text() for name in kept} == before


def test_a_renamed_queue_is_named_in_the_access_rules(machine: FakeMachine) -> None:
    machine.install()
    (machine.layout.config / "gateway.env").write_text('QUEUE_STREAM_KEY="work"\n')
    machine.install()
    acl = machine.layout.users_acl.read_text()
    assert "~work ~work:*" in acl
    assert "jobs:stream" not in acl
    assert "restart redis.service" in machine.systemd.commands


def test_the_number_of_partitions_is_read_from_gateway_env(machine: FakeMachine) -> None:
    settings = machine.layout.config / "gateway.env"
    settings.parent.mkdir(parents=True, exist_ok=True)
    assert keys_of(machine.layout) == JobKeys()
    for text, tag in (("4", "{0}:"), ("1", ""), ("0", ""), ("many", ""), ("", "")):
        settings.write_text(f"QUEUE_PARTITIONS={text}\nQUEUE_STREAM_KEY=work\n")
        assert keys_of(machine.layout).tag == tag
        assert keys_of(machine.layout).queue == f"{tag}work"


# -- Redis --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14"])
def test_an_old_redis_is_refused_with_instructions(
    machine: FakeMachine, redis: Path, version: str
) -> None:
    fake_redis(redis, version)
    assert machine.install("--redis-server", redis) == 69
    assert f"is Redis {version}; 6.2 or newer is required" in machine.error
    assert "make -C redis-stable -j2 USE_SYSTEMD=yes" in machine.error
    assert "--redis-server /path" in machine.error
    assert not machine.root.exists()


def test_no_redis_at_all(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    for path in (other, tmp_path / "nothing"):
        assert machine.install("--redis-server", path) == 78
        assert "--redis-server" in machine.error
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(redis_server, "DEFAULT_PATHS", ())
    assert machine.install() == 69
    assert "apt-get install redis-server" in machine.error


def test_another_redis_server_gets_a_drop_in(machine: FakeMachine, tmp_path: Path) -> None:
    built = fake_redis(tmp_path / "built", "8.4.0", notifies=False)
    assert machine.install("--redis-server", built, "--redis-port", "6390") == 0
    drop_in = (machine.layout.units / "redis.service.d" / "50-install.conf").read_text()
    assert f"ExecStart=\nExecStart={built} /etc/sluice/redis.conf\n" in drop_in
    for line in ("Type=exec", "PrivateNetwork=no", "IPAddressAllow=localhost"):
        assert line in drop_in
    assert "port 6390" in machine.layout.redis_conf.read_text()
    # The next run keeps the options.
    machine.install()
    assert "no changes" in machine.output


@pytest.mark.parametrize("installed", [True, False])
def test_data_of_a_newer_redis_is_refused(
    machine: FakeMachine, redis: Path, installed: bool
) -> None:
    """An older Redis would silently start empty."""
    machine.install()
    (machine.layout.redis_data / "appendonlydir").mkdir()
    if not installed:
        machine.run("uninstall")
    fake_redis(redis, "6.2.14")
    with machine.unchanged():
        assert machine.install() == 78
    assert "cannot read it" in machine.error
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
    # redis.service is an alias of Debian's unit now, and the name of Sluice's unit.
    machine.systemd.active.add("redis.service")
    machine.systemd.enabled.add("redis.service")
    machine.systemd.commands = []
    assert machine.run("uninstall", "--purge", "--yes") == 0
    assert unit.is_symlink()
    assert wanted.is_symlink()
    assert not [line for line in machine.systemd.commands if "redis.service" in line]
    assert not machine.layout.state.exists()


def test_an_unknown_redis_unit_is_not_replaced(machine: FakeMachine) -> None:
    machine.layout.units.mkdir(parents=True)
    (machine.layout.units / "redis.service").write_text("[Service]\n")
    with machine.unchanged():
        assert machine.install() == 78
    assert "not installed by Sluice" in machine.error


# -- releases -----------------------------------------------------------------------------------


def test_a_failed_step_rolls_back_the_earlier_ones(machine: FakeMachine) -> None:
    alias(machine)
    before = {name: entry for name, entry in machine.tree().items() if entry[1]}
    machine.builder.fails = True
    assert machine.install() == 1
    assert "Check the internet." in machine.error
    assert {name: entry for name, entry in machine.tree().items() if entry[1]} == before
    machine.builder.fails = False
    assert machine.install() == 0


def test_an_upgrade_restarts_what_changed_and_keeps_two_releases(machine: FakeMachine) -> None:
    assert machine.run("upgrade") == 78
    assert "install.sh install" in machine.error
    machine.install()
    machine.systemd.active.add("redis-worker@gpu.service")
    machine.systemd.commands = []
    for name in ("0.1.0-second", "0.1.0-third"):
        assert machine.upgrade(name) == 0
    assert "restart redis-gateway.service" in machine.systemd.commands
    assert "restart redis-worker@gpu.service" in machine.systemd.commands
    assert "restart redis.service" not in machine.systemd.commands
    for home in (machine.layout.gateway_home, machine.layout.worker_home):
        assert os.readlink(home / "venv") == "releases/0.1.0-third/venv"
        kept = {path.name for path in (home / "releases").iterdir()}
        assert kept == {"0.1.0-second", "0.1.0-third"}


def test_a_broken_release_is_rolled_back(machine: FakeMachine) -> None:
    machine.install()
    machine.systemd.commands = []
    with machine.unchanged():
        assert machine.upgrade("0.2.0-broken") == 70
    assert "/readyz returned 503" in machine.error
    assert f"release {FIRST_RELEASE} was restored" in machine.error
    # One restart for the upgrade, one for the rollback.
    assert machine.systemd.commands.count("restart redis-gateway.service") == 2
    machine.release = FIRST_RELEASE
    assert machine.install() == 0
    assert "no changes" in machine.output


def test_an_incomplete_release_is_rebuilt(machine: FakeMachine) -> None:
    half = machine.layout.gateway_home / "releases" / FIRST_RELEASE / "venv"
    half.mkdir(parents=True)
    (half / "rubbish").write_text("")
    assert machine.install() == 0
    assert not (half / "rubbish").exists()


def test_a_disabled_unit_stays_disabled(machine: FakeMachine) -> None:
    machine.install()
    machine.systemd.active.discard("redis-echo-worker.service")
    machine.systemd.enabled.discard("redis-echo-worker.service")
    assert machine.upgrade("0.1.0-second") == 0
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
def test_an_invalid_listen_address_is_refused(machine: FakeMachine, listen: str) -> None:
    assert machine.install("--listen", listen) == 78
    assert "for example 127.0.0.1:8080" in machine.error
    assert not machine.root.exists()


# -- uninstall ----------------------------------------------------------------------------------


def test_uninstall_keeps_what_a_purge_removes(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs, undelivered webhooks, images and the operator's own handlers."""
    machine.install("--listen", "0.0.0.0:9000")
    layout = machine.layout
    data = {
        *(layout.redis_data / "dump.rdb", layout.logs / "workflow_webhook_dlq.jsonl"),
        *(layout.images / "store" / "images" / "x.webp", layout.handlers / "own.py"),
    }
    for path in data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("data")
    with machine.unchanged():
        assert machine.run("uninstall", "--dry-run") == 0
    assert "would: remove" in machine.output
    assert machine.run("uninstall") == 0
    for directory in (layout.redis_data, layout.images, layout.handlers):
        assert str(directory) in machine.output
    files = {machine.root / name for name, (_, content) in machine.tree().items() if content}
    assert files == data
    assert list(layout.worker_home.iterdir()) == [layout.handlers]
    assert not any(
        "sluice" in name and not name.startswith(("var", "opt")) for name in machine.tree()
    )
    assert machine.systemd.active == machine.systemd.enabled == set()
    # The next installation uses the data again.
    assert machine.install() == 0
    assert {path.read_text() for path in data} == {"data"}
    monkeypatch.setattr("os.isatty", lambda _: False)
    assert machine.run("uninstall", "--purge") == 78
    assert "--yes" in machine.error
    assert machine.run("uninstall", "--purge", "--yes") == 0
    for directory in (layout.state, layout.logs, layout.images, layout.worker_home):
        assert not directory.exists()
    assert machine.run("uninstall") == 78  # nothing is installed


def test_an_image_store_without_images_is_not_kept(machine: FakeMachine) -> None:
    machine.install()
    (machine.layout.images / "store" / ".store-id").write_text("0123456789abcdef")
    assert machine.run("uninstall") == 0
    assert not machine.layout.images.exists()


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


def test_status_shows_the_release(machine: FakeMachine) -> None:
    assert machine.run("status") == 3
    machine.install()
    assert machine.run("status") == 0
    assert FIRST_RELEASE in machine.output


def test_install_requires_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    done = sh("status", "--root", str(tmp_path / "machine"), cwd=tmp_path)
    assert done.returncode == 3, done.stderr


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
