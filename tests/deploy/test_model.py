"""`install.sh --with-model`: what it brings, keeps, takes back and removes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from deploy.installer import model
from deploy.installer.errors import InstallError, Missing
from deploy.installer.host import Host
from deploy.installer.layout import Layout
from deploy.installer.say import Say
from tests.deploy.box import Box, FakeMaker

MODEL, AI, ECHO = "sluice-model.service", "redis-worker@ai.service", "redis-echo-worker.service"
DROP_IN = "/etc/systemd/system/redis-worker@.service.d/50-install.conf"


def test_without_it_nothing_of_it_is_there(box: Box) -> None:
    assert box.install() == 0
    assert not box.layout.model_home.exists()
    assert not (box.layout.units / MODEL).exists()
    assert not box.layout.at(DROP_IN).exists()
    assert ECHO in box.systemd.enabled


def test_a_fresh_box_gets_the_model_and_a_worker_that_asks_it(box: Box) -> None:
    assert box.install("--with-model") == 0
    home = box.layout.model_home
    assert os.readlink(home / "engine") == f"releases/{model.name()}/engine"
    assert (home / "engine").is_dir()
    assert (home / "models" / "weights.gguf").is_file()
    assert (home / "model.py").is_file()
    assert box.mode("/etc/sluice/model.env") == 0o640
    assert "Environment=MODEL_URL=http://127.0.0.1:8090\n" in box.layout.at(DROP_IN).read_text()
    assert {MODEL, AI} <= box.systemd.enabled == box.systemd.active
    assert ECHO not in box.systemd.enabled


def test_a_dry_run_shows_it_and_does_nothing(box: Box) -> None:
    box.install()
    before = box.tree()
    assert box.install("--with-model", "--dry-run") == 0
    assert f"would: install the model into {box.layout.model_home}" in box.output
    assert f"would: enable and start {MODEL}, {AI}" in box.output
    assert f"would: stop and disable {ECHO}" in box.output
    assert "+MODEL" not in box.output
    assert box.tree() == before


def test_an_installed_box_changes_from_echo_to_the_model(box: Box) -> None:
    box.install()
    box.systemd.told = []
    assert box.install("--with-model") == 0
    assert {MODEL, AI} <= box.systemd.active
    assert ECHO not in box.systemd.enabled | box.systemd.active
    assert box.systemd.told.index(f"start {MODEL}") < box.systemd.told.index(f"start {AI}")


def test_it_is_kept_and_a_second_run_changes_nothing(box: Box) -> None:
    box.install("--with-model")
    (box.layout.config / "model.env").write_text("SERVE_SLOTS=4\n")
    before, box.systemd.told = box.tree(), []
    assert box.install() == 0
    assert "nothing to change" in box.output
    assert box.tree() == before
    assert box.systemd.told == []


def test_what_the_operator_has_disabled_stays_so(box: Box) -> None:
    box.install("--with-model")
    for unit in (MODEL, AI):
        box.systemd.enabled.remove(unit)
        box.systemd.active.remove(unit)
    with box.release("0.1.0-next"):
        assert box.run("upgrade") == 0
    assert not {MODEL, AI} & (box.systemd.enabled | box.systemd.active)


def test_during_an_upgrade_nobody_asks_a_model_that_restarts(box: Box) -> None:
    box.install("--with-model")
    box.systemd.told = []
    with box.release("0.1.0-next"):
        assert box.run("upgrade") == 0
    stop, restart, start = (
        box.systemd.told.index(words) for words in (f"stop {AI}", f"restart {MODEL}", f"start {AI}")
    )
    assert stop < restart < start


def test_another_engine_is_rolled_back_with_its_release(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.install("--with-model")
    before = box.tree()
    monkeypatch.setattr(model, "name", lambda: "9.9-new")
    with box.release("0.2.0-broken"):
        assert box.run("upgrade") == 70
    assert box.tree() == before


def test_a_model_that_does_not_work_leaves_the_echo_worker_in_place(box: Box) -> None:
    box.install()
    before = box.tree()
    with box.release("0.2.0-broken"):
        assert box.install("--with-model") == 70
    assert box.tree() == before
    assert ECHO in box.systemd.enabled & box.systemd.active
    assert not {MODEL, AI} & (box.systemd.enabled | box.systemd.active)


def test_weights_that_cannot_be_had_change_nothing(box: Box) -> None:
    box.install()
    before = box.tree()
    box.maker = FakeMaker(fails=True)
    assert box.install("--with-model") == 69
    assert box.tree() == before


def test_an_old_engine_is_removed_after_the_next_but_one(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        monkeypatch.setattr(model, "name", lambda number=number: f"engine-{number}")
        assert box.install("--with-model") == 0
    kept = {path.name for path in (box.layout.model_home / "releases").iterdir()}
    assert kept == {"engine-1", "engine-2"}
    assert (box.layout.model_home / "models" / "weights.gguf").is_file()


def test_status_tells_of_it_and_uninstall_leaves_nothing(box: Box) -> None:
    box.install("--with-model")
    assert json.loads(box.layout.manifest.read_text())["model"] is True
    assert box.run("status") == 0
    assert f"{box.layout.model_home}: uses {model.name()}" in box.output
    assert box.run("uninstall", "--yes") == 0
    assert not box.layout.model_home.exists()
    assert not list(box.layout.units.glob("*"))


def test_pip_fails_in_words(tmp_path: Path) -> None:
    sluice = tmp_path / "sluice"
    sluice.write_text("#!/bin/sh\necho 'sluice: no wheel of xllamacpp'\nexit 69\n")
    sluice.chmod(0o755)
    maker = model.PipMaker(Host(Layout(tmp_path)), Say(), tmp_path)
    with pytest.raises(Missing) as failed:
        maker.make(sluice, tmp_path / "engine", tmp_path / "models")
    assert "no wheel of xllamacpp" in failed.value.what
    assert isinstance(failed.value, InstallError)
