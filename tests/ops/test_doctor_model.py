"""The model server, its weights and the embedder, on machines made of files and words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.models_dir import CHAT_FILE
from common.settings import WorkerSettings
from ops.doctor import model_checks as checks
from ops.doctor import unit_checks, units
from ops.doctor.box import Box
from ops.doctor.finding import Health, Unable
from ops.doctor.server import Server
from ops.fetching import Answer, Fetch
from ops.model.announcement import Announcement, Place
from ops.model.catalogue import Member, Purpose, Weights, digest
from ops.redis_target import RedisTarget
from tests.ops.kit import answering, box, look, looks, write
from tests.ops.test_doctor_units import RUNNING, Systemd

OK = Answer(200, b'{"status":"ok"}')
MODELS = Answer(200, b'{"data":[{"id":"small"},{"id":"large"}]}')
SLOTS = Answer(200, b'[{"is_processing":true},{"is_processing":false}]')
UP = answering(health=OK, models=MODELS, slots=SLOTS)
URL = "http://127.0.0.1:8090"


def settings(**given: Any) -> WorkerSettings:
    return WorkerSettings(**given)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any model, and an environment that names none."""
    for name in list(os.environ):
        if name.startswith(("MODEL_", "EMBED", "SLUICE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def machine(root: Path, fetch: Fetch = UP, **given: Any) -> Box:
    models = {"SLUICE_MODELS_DIR": str(root / "models")}
    return box(root, fetch=fetch, worker_settings=settings(**given), environ=models)


def test_no_model_is_named(bare: Path) -> None:
    found = look(checks.server, machine(bare))
    assert (found.status, found.seen) == (Health.NOTE, "none is named")
    assert "make model" in found.fix
    write(bare, "/etc/systemd/system/redis-gateway.service")
    assert "--with-model" in look(checks.server, machine(bare)).fix
    for check in (checks.name, checks.slots):
        with pytest.raises(Unable):
            check.look(machine(bare))


def test_a_server_that_answers(bare: Path) -> None:
    subject = machine(bare, model_url=URL)
    assert look(checks.server, subject).status is Health.OK
    assert look(checks.name, subject).seen == "small, large"
    assert look(checks.slots, subject).seen == "1 of 2 slots busy"


def test_who_named_it_is_told(bare: Path) -> None:
    Announcement(bare / ".sluice").prepare()
    Announcement(bare / ".sluice").write(Place(URL, "small", 1))
    assert "model.json" in look(checks.server, machine(bare)).seen
    write(bare, checks.DROP_IN, f"[Service]\nEnvironment=MODEL_URL={URL}/two\n")
    assert f"{URL}/two (named by {checks.DROP_IN})" in look(checks.server, machine(bare)).seen
    named = machine(bare, model_url="http://u:secret@other:1")
    assert look(checks.server, named).seen.startswith("http://u:***@other:1 (named by MODEL_URL)")


def test_a_server_that_is_away(bare: Path) -> None:
    def refuse(url: str, timeout_s: float, headers: Mapping[str, str]) -> Answer:
        raise ConnectionRefusedError("refused")

    found = look(checks.server, machine(bare, refuse, model_url=URL))
    assert (found.status, "MODEL_URL" in found.fix) == (Health.FAIL, True)
    write(bare, checks.DROP_IN, f"[Service]\nEnvironment=MODEL_URL={URL}\n")
    assert "sluice model serve" in look(checks.server, machine(bare, refuse)).fix
    write(bare, "/etc/systemd/system/sluice-model.service")
    assert "systemctl start sluice-model" in look(checks.server, machine(bare, refuse)).fix
    with pytest.raises(Unable):
        checks.slots.look(machine(bare, refuse))


@pytest.mark.parametrize(
    ("answers", "status", "word"),
    [
        ({"health": Answer(503, b"{}")}, Health.NOTE, "loading"),
        ({"health": OK, "models": Answer(401, b"{}")}, Health.FAIL, "let us in"),
        ({"health": OK, "models": Answer(200, b"<html>")}, Health.FAIL, "no list of models"),
    ],
)
def test_a_server_with_which_something_is_the_matter(
    bare: Path, answers: dict[str, Answer], status: Health, word: str
) -> None:
    found = look(checks.server, machine(bare, answering(**answers), model_url=URL))
    assert found.status is status
    assert word in found.seen


def test_a_name_that_the_server_does_not_know(bare: Path) -> None:
    found = look(checks.name, machine(bare, model_url=URL, model_name="none"))
    assert (found.status, "small, large" in found.cause) == (Health.FAIL, True)
    assert look(checks.name, machine(bare, model_url=URL, model_name="large")).status is Health.OK


def test_more_asked_than_there_are_slots(bare: Path) -> None:
    assert look(checks.slots, machine(bare, model_url=URL, model_slots=3)).status is Health.WARN
    assert look(checks.slots, machine(bare, model_url=URL, model_slots=2)).status is Health.OK
    silent = answering(health=OK, models=MODELS)
    assert look(checks.slots, machine(bare, silent, model_url=URL)).status is Health.NOTE
    told = machine(bare, silent, model_url=URL, model_slots=4)
    assert look(checks.slots, told).status is Health.OK


@pytest.fixture
def small(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small weights, whole and in their place."""
    directory = bare / "models"
    for purpose, name in ((Purpose.CHAT, CHAT_FILE), (Purpose.EMBED, "m/model.safetensors")):
        path = write(directory, name, "weights")
        member = Member(name, name, path.stat().st_size, digest(path))
        weights = Weights(purpose, name, "wheel", 1, (member,))
        monkeypatch.setattr(checks, purpose.name, weights)
    monkeypatch.setattr(checks, "engine_version", lambda directory: "1.0")
    return bare


def test_weights(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(checks.weights, machine(small)).status is Health.OK
    with monkeypatch.context() as without:
        without.setattr(checks, "engine_version", lambda directory: None)
        assert look(checks.weights, machine(small)).status is Health.WARN
    write(small, f"models/{CHAT_FILE}", "weightz")
    found = look(checks.weights, machine(small))
    assert (found.status, found.fix) == (Health.FAIL, "sluice model install")
    (small / "models" / CHAT_FILE).unlink()
    assert look(checks.weights, machine(small)).status is Health.NOTE


def test_weights_of_the_installer(small: Path) -> None:
    (small / "models").rename(small / "elsewhere")
    write(small, checks.DROP_IN, "[Service]\nEnvironment=SLUICE_MODELS_DIR=/elsewhere\n")
    subject = box(small, worker_settings=settings())
    assert look(checks.weights, subject).status is Health.OK
    assert look(checks.embedder, subject).status is Health.OK


def test_an_embedder(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(checks.embedder, machine(small)).status is Health.OK
    with monkeypatch.context() as without:
        without.setattr(checks, "find_spec", lambda name: None)
        assert "numpy" in look(checks.embedder, machine(small)).cause
    write(small, "models/m/model.safetensors", "weightz")
    assert look(checks.embedder, machine(small)).status is Health.FAIL
    (small / "models/m/model.safetensors").unlink()
    assert look(checks.embedder, machine(small)).status is Health.NOTE
    assert look(checks.embedder, machine(small, embedder="minilm")).status is Health.FAIL
    assert look(checks.embedder, machine(small, embedder="off")).status is Health.NOTE
    assert look(checks.embedder, machine(small, embedder="server")).status is Health.FAIL
    assert look(checks.embedder, machine(small, embed_url=URL)).status is Health.OK
    served = machine(small, embedder="server", model_url=URL)
    assert look(checks.embedder, served).status is Health.OK
    away = machine(small, answering(models=Answer(404, b"")), embed_url=URL)
    assert "EMBED_URL" in look(checks.embedder, away).fix


@pytest.mark.parametrize(
    ("version", "numpy", "status"),
    [("8.4.0", False, Health.OK), ("7.0.15", True, Health.OK), ("7.0.15", False, Health.WARN)],
)
def test_who_searches_vectors(
    bare: Path, monkeypatch: pytest.MonkeyPatch, version: str, numpy: bool, status: Health
) -> None:
    class Told(Server):
        answers = True
        info = {"redis_version": version}  # noqa: RUF012

    monkeypatch.setattr(checks, "find_spec", lambda name: object() if numpy else None)
    subject = box(bare, redis=Told(RedisTarget("redis://box", "--redis")))
    assert look(checks.vectors, subject).status is status


def test_the_models_unit_is_looked_at_where_it_is_installed(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    assert all(units.MODEL not in found.seen for found in looks(unit_checks.state, systemd.box))
    write(tmp_path, f"/etc/systemd/system/{units.MODEL}")
    status, _ = systemd.state(units.MODEL, ActiveState="failed", SubState="failed")
    assert status is Health.FAIL
    write(tmp_path, "/etc/systemd/system/redis-gateway.service")
    assert systemd.box.remedies.start_worker == "sudo systemctl start redis-worker@ai"


def test_no_echo_worker_is_no_fault_where_others_work(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    stopped = {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "disabled"}
    assert systemd.state(units.ECHO_WORKER, **stopped)[0] is Health.FAIL
    systemd.units["redis-worker@ai.service"] = dict(RUNNING)
    assert systemd.state(units.ECHO_WORKER, **stopped)[0] is Health.NOTE
