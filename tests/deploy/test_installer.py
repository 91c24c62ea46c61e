"""deploy/install.sh below a directory: what it writes, keeps, refuses and takes back."""

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
from tests.deploy.box import Box, fake_redis

ROOT = Path(__file__).parents[2]
INSTALL_SH = ROOT / "deploy" / "install.sh"


def test_a_dry_run_shows_every_difference_and_writes_nothing(box: Box) -> None:
    assert box.install("--dry-run") == 0
    assert not box.root.exists()
    assert "+maxmemory-policy noeviction" in box.output
    assert "+user gateway reset on #" in box.output
    assert f"+++ {box.root}/etc/systemd/system/redis-gateway.service" in box.output
    assert "would: enable and start redis.service" in box.output
    assert "unix://" not in box.output, "a password is shown"


def test_a_dry_run_promises_only_what_would_be_done(box: Box) -> None:
    assert box.install("--dry-run", "--no-start") == 0
    assert "would: enable redis.service" in box.output
    image = Box(box.root, there=False)
    assert image.install("--dry-run") == 0
    assert "would: enable" not in image.output
    assert image.install() == 0
    assert image.systemd.enabled == set()


def test_the_layout_that_units_rely_on(box: Box) -> None:
    assert box.install() == 0
    assert box.mode("/etc/sluice") == 0o755
    assert box.mode("/etc/sluice/credentials") == 0o700
    for role in ("gateway", "worker", "admin"):
        assert box.mode(f"/etc/sluice/credentials/{role}.redis_url") == 0o600
    assert box.mode("/etc/sluice/users.acl") == 0o640
    assert box.mode("/etc/sluice/gateway.env") == 0o640
    assert box.mode("/var/lib/sluice/redis") == 0o700
    for home, entry in (("redis-gateway", "main.py"), ("redis-worker", "echo_worker.py")):
        assert (box.layout.at("/opt") / home / entry).is_file()
        assert (box.layout.at("/opt") / home / "venv" / "bin" / "python").is_file()
    assert os.readlink(box.layout.command) == "/opt/redis-gateway/sluice"
    assert box.mode("/opt/redis-gateway/sluice") == 0o755
    assert box.systemd.active == box.systemd.enabled
    assert "redis-gateway.socket" in box.systemd.active


def test_a_second_run_changes_nothing_and_says_so(box: Box) -> None:
    box.install()
    before, box.systemd.told = box.tree(), []
    assert box.install() == 0
    assert "nothing to change" in box.output
    assert box.install("--dry-run") == 0
    assert "nothing would change" in box.output
    assert box.tree() == before
    assert box.systemd.told == []


def test_passwords_are_random_kept_and_known_to_redis_by_their_digest(box: Box) -> None:
    box.install()
    urls = {role: box.layout.redis_url(role).read_text() for role in ("gateway", "worker", "admin")}
    passwords = {role: urlsplit(url).password or "" for role, url in urls.items()}
    assert len(set(passwords.values())) == 3
    assert all(len(password) >= 40 for password in passwords.values())
    acl = box.layout.users_acl.read_text()
    for role, password in passwords.items():
        assert urls[role] == f"unix://{role}:{password}@/run/sluice/redis.sock\n"
        assert password not in acl
        assert f"user {role} reset on #{hashlib.sha256(password.encode()).hexdigest()}" in acl
    with box.release("0.1.0-next"):
        box.run("upgrade")
    assert {role: box.layout.redis_url(role).read_text() for role in urls} == urls


def test_settings_of_the_operator_are_never_overwritten(box: Box) -> None:
    box.install()
    mine = {"gateway.env": "JOB_TTL_S=60\n", "worker.env": "# mine\n", "redis-local.conf": "# m\n"}
    for name, content in mine.items():
        (box.layout.config / name).write_text(content)
    with box.release("0.1.0-next"):
        assert box.run("upgrade") == 0
    assert {name: (box.layout.config / name).read_text() for name in mine} == mine


def test_a_renamed_queue_is_named_in_the_access_rules(box: Box) -> None:
    box.install()
    (box.layout.config / "gateway.env").write_text('QUEUE_STREAM_KEY="work"\n')
    box.install()
    acl = box.layout.users_acl.read_text()
    assert "~work ~work:*" in acl
    assert "jobs:stream" not in acl
    assert "restart redis.service" in box.systemd.told


# -- Redis --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14"])
def test_an_old_redis_is_refused_with_the_exact_remedy(
    box: Box, redis: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_redis(redis, version)
    assert box.install("--redis-server", redis) == 69
    told = capsys.readouterr().err
    assert f"is Redis {version}, and 6.2 is the oldest" in told
    assert "make -C redis-stable -j2 USE_SYSTEMD=yes" in told
    assert "--redis-server /path" in told
    assert not box.root.exists()


def test_no_redis_at_all(
    box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(redis_server, "USUAL_PLACES", ())
    assert box.install() == 69
    assert "apt-get install redis-server" in capsys.readouterr().err


def test_what_is_no_redis_server(
    box: Box, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    assert box.install("--redis-server", other) == 78
    assert box.install("--redis-server", tmp_path / "nothing") == 78
    assert "--redis-server" in capsys.readouterr().err


def test_another_redis_server_gets_a_drop_in(box: Box, tmp_path: Path) -> None:
    built = fake_redis(tmp_path / "built", "8.4.0", notifies=False)
    assert box.install("--redis-server", built, "--redis-port", "6390") == 0
    drop_in = (box.layout.units / "redis.service.d" / "50-install.conf").read_text()
    assert f"ExecStart=\nExecStart={built} /etc/sluice/redis.conf\n" in drop_in
    assert "Type=exec" in drop_in
    assert "PrivateNetwork=no" in drop_in
    assert "IPAddressAllow=localhost" in drop_in
    assert "port 6390" in box.layout.redis_conf.read_text()
    # The next run remembers.
    box.install()
    assert "nothing to change" in box.output


@pytest.mark.parametrize("installed", [True, False])
def test_data_of_a_newer_redis_is_not_given_to_an_older_one(
    box: Box, redis: Path, installed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would start empty, and say nothing."""
    box.install()
    (box.layout.redis_data / "appendonlydir").mkdir()
    if not installed:
        box.run("uninstall")
    fake_redis(redis, "6.2.14")
    before = box.tree()
    assert box.install() == 78
    assert "would not find the jobs" in capsys.readouterr().err
    assert box.tree() == before
    fake_redis(redis, "7.2.0")
    assert box.install() == 0


def alias(box: Box) -> tuple[Path, Path]:
    """Debian's redis-server.service, enabled."""
    target = Path("/lib/systemd/system/redis-server.service")
    links = (
        box.layout.units / "redis.service",
        box.layout.units / "multi-user.target.wants" / "redis-server.service",
    )
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    return links


def test_debians_redis_stands_aside_and_comes_back(box: Box) -> None:
    unit, wanted = alias(box)
    assert box.install("--dry-run") == 0
    assert "would: stop and disable redis-server.service" in box.output
    assert unit.is_symlink()
    assert box.install() == 0
    assert not unit.is_symlink()
    assert "Redis for Sluice" in unit.read_text()
    assert not wanted.is_symlink()
    assert json.loads(box.layout.manifest.read_text())["foreign_redis_enabled"] is True
    box.install()
    assert "nothing to change" in box.output
    assert box.run("uninstall", "--yes") == 0
    assert unit.is_symlink()
    assert wanted.is_symlink()


def test_a_purge_after_an_uninstall_leaves_debians_redis_alone(box: Box) -> None:
    """Its other name is that of our unit."""
    links = alias(box)
    box.install()
    box.run("uninstall")
    box.systemd.active.add("redis.service")
    box.systemd.enabled.add("redis.service")
    box.systemd.told = []
    assert box.run("uninstall", "--purge", "--yes") == 0
    assert all(link.is_symlink() for link in links)
    assert not [line for line in box.systemd.told if "redis.service" in line]
    assert not box.layout.state.exists()


def test_workers_that_somebody_enabled_go_too(box: Box) -> None:
    box.install()
    instance = "redis-worker@gpu.service"
    wanted = box.layout.units / "multi-user.target.wants" / instance
    wanted.parent.mkdir()
    wanted.symlink_to(box.layout.units / "redis-worker@.service")
    drop_in = box.layout.units / f"{instance}.d" / "override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\n")
    box.systemd.active.add(instance)
    box.systemd.enabled.add(instance)
    assert box.run("uninstall") == 0
    assert f"stop {instance}" in box.systemd.told
    assert f"disable {instance}" in box.systemd.told
    assert not drop_in.exists()


def test_a_redis_unit_of_a_stranger_is_left_alone(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    box.layout.units.mkdir(parents=True)
    (box.layout.units / "redis.service").write_text("[Service]\n")
    before = box.tree()
    assert box.install() == 78
    assert "not from us" in capsys.readouterr().err
    assert box.tree() == before


# -- releases -----------------------------------------------------------------------------------


def test_a_step_that_fails_takes_back_those_before_it(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    alias(box)
    before = {name: entry for name, entry in box.tree().items() if entry[1]}
    box.builder.fails = True
    assert box.install() == 1
    assert "Look at the internet." in capsys.readouterr().err
    assert {name: entry for name, entry in box.tree().items() if entry[1]} == before
    box.builder.fails = False
    assert box.install() == 0


def test_an_upgrade_restarts_what_changed_and_keeps_two_releases(box: Box) -> None:
    box.install()
    box.systemd.active.add("redis-worker@gpu.service")
    box.systemd.told = []
    for name in ("0.1.0-second", "0.1.0-third"):
        with box.release(name):
            assert box.run("upgrade") == 0
    assert "restart redis-gateway.service" in box.systemd.told
    assert "restart redis-worker@gpu.service" in box.systemd.told
    assert "restart redis.service" not in box.systemd.told
    for home in (box.layout.gateway_home, box.layout.worker_home):
        assert os.readlink(home / "venv") == "releases/0.1.0-third/venv"
        kept = {path.name for path in (home / "releases").iterdir()}
        assert kept == {"0.1.0-second", "0.1.0-third"}


def test_a_broken_release_is_rolled_back(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.install()
    before, box.systemd.told = box.tree(), []
    with box.release("0.2.0-broken"):
        assert box.run("upgrade") == 70
    told = capsys.readouterr().err
    assert "/readyz answers 503" in told
    assert "release 0.1.0-first is in place again" in told
    assert box.tree() == before
    restarts = [line for line in box.systemd.told if line == "restart redis-gateway.service"]
    assert len(restarts) == 2  # to the new one, and back
    assert box.install() == 0
    assert "nothing to change" in box.output


def test_there_must_be_something_to_upgrade(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    assert box.run("upgrade") == 78
    assert "install.sh install" in capsys.readouterr().err


def test_half_a_release_is_built_again(box: Box) -> None:
    half = box.layout.gateway_home / "releases" / "0.1.0-first" / "venv"
    half.mkdir(parents=True)
    (half / "rubbish").write_text("")
    assert box.install() == 0
    assert not (half / "rubbish").exists()


def test_what_an_operator_disabled_stays_so(box: Box) -> None:
    box.install()
    box.systemd.active.discard("redis-echo-worker.service")
    box.systemd.enabled.discard("redis-echo-worker.service")
    with box.release("0.1.0-second"):
        assert box.run("upgrade") == 0
    assert "redis-echo-worker.service" not in box.systemd.active | box.systemd.enabled


# -- where it listens ---------------------------------------------------------------------------


def test_beyond_loopback_api_keys_are_told_of(box: Box) -> None:
    assert box.install("--listen", "0.0.0.0:9000") == 0
    drop_in = box.layout.units / "redis-gateway.socket.d" / "50-install.conf"
    assert drop_in.read_text().endswith("[Socket]\nListenStream=\nListenStream=0.0.0.0:9000\n")
    assert "needs an API key" in box.output
    assert "sluice key create" in box.output
    box.install()
    assert "nothing to change" in box.output
    box.systemd.told = []
    assert box.install("--listen", "127.0.0.1:8080") == 0
    assert not drop_in.parent.exists()
    assert "restart redis-gateway.socket" in box.systemd.told


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999", ":80"])
def test_an_address_that_is_none(box: Box, listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert box.install("--listen", listen) == 78
    assert "such as 127.0.0.1:8080" in capsys.readouterr().err
    assert not box.root.exists()


# -- uninstall ----------------------------------------------------------------------------------


def test_uninstall_leaves_nothing_but_the_data(box: Box) -> None:
    box.install("--listen", "0.0.0.0:9000")
    (box.layout.redis_data / "dump.rdb").write_text("jobs")
    assert box.run("uninstall", "--dry-run") == 0
    assert "would: remove" in box.output
    assert box.run("uninstall") == 0
    assert str(box.layout.redis_data) in box.output
    files = [name for name, (_, content) in box.tree().items() if content]
    assert files == ["var/lib/sluice/redis/dump.rdb"]
    assert not any("sluice" in name and "var" not in name for name in box.tree())
    assert box.systemd.active == box.systemd.enabled == set()
    # The next installation takes the data up again.
    assert box.install() == 0
    assert (box.layout.redis_data / "dump.rdb").read_text() == "jobs"


def test_purge_asks_and_then_leaves_nothing(
    box: Box, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    box.install()
    (box.layout.redis_data / "dump.rdb").write_text("jobs")
    monkeypatch.setattr("os.isatty", lambda _: False)
    assert box.run("uninstall", "--purge") == 78
    assert "--yes" in capsys.readouterr().err
    assert box.run("uninstall", "--purge", "--yes") == 0
    assert not box.layout.state.exists()
    assert box.run("uninstall") == 78  # nothing is installed


def test_webhooks_that_were_given_up_survive_all_but_a_purge(box: Box) -> None:
    box.install()
    box.layout.logs.mkdir(parents=True)
    letters = box.layout.logs / "workflow_webhook_dlq.jsonl"
    letters.write_text("{}")
    assert box.run("uninstall") == 0
    assert letters.is_file()
    box.install()
    assert box.run("uninstall", "--purge", "--yes") == 0
    assert not box.layout.logs.exists()


def test_handlers_that_somebody_wrote_survive(box: Box) -> None:
    box.install()
    (box.layout.handlers / "mine.py").write_text("x = 1\n")
    assert box.run("uninstall") == 0
    assert (box.layout.handlers / "mine.py").is_file()
    assert list(box.layout.worker_home.iterdir()) == [box.layout.handlers]


def test_status_tells_what_is_there(box: Box) -> None:
    assert box.run("status") == 3
    box.install()
    assert box.run("status") == 0
    assert "0.1.0-first" in box.output


def test_only_root_installs(
    box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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


def test_it_runs_from_anywhere(tmp_path: Path) -> None:
    for name in ("deploy", "common"):  # packages of somebody else
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(9)\n")
    done = sh("--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "exit codes:" in done.stdout
    assert sh("status", "--root", str(tmp_path / "box"), cwd=tmp_path).returncode == 3


def test_it_needs_the_standard_library_only() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import deploy.installer.cli"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_box_without_python_is_told_how_to_get_one(tmp_path: Path) -> None:
    for tool in ("dirname", "sh"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    done = sh("install", cwd=tmp_path, path=str(tmp_path))
    assert done.returncode == 69
    assert "apt-get install python3 python3-venv" in done.stderr
    done = sh("install", "--python", "/nowhere/python", cwd=tmp_path)
    assert done.returncode == 69
    assert "--python" in done.stderr
