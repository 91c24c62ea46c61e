"""Checks of the model server, the weights and the embedder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from common.settings.models_dir import CHAT_FILE
from common.settings.worker import WorkerSettings
from ops.doctor.checks import model as checks
from ops.doctor.checks import systemd as unit_checks
from ops.doctor.checks import systemd as units
from ops.doctor.finding import CheckSkipped, Health
from ops.doctor.machine import Machine
from ops.doctor.redis_server import RedisServer
from ops.http import Fetch, Response
from ops.model.announcement import Announcement, ServedModel
from ops.model.catalogue import ModelFile, Purpose, Weights, digest
from ops.redis_target import RedisTarget
from tests.ops.doctor.checks.test_systemd import RUNNING, Systemd
from tests.ops.doctor.machines import (
    answering,
    finding_of,
    findings_of,
    make_machine,
    status_of,
    write,
)

OK = Response(200, b'{"status":"ok"}')
MODELS = Response(200, b'{"data":[{"id":"small"},{"id":"large"}]}')
SLOTS = Response(200, b'[{"is_processing":true},{"is_processing":false}]')
UP = answering(health=OK, models=MODELS, slots=SLOTS)
URL = "http://127.0.0.1:8090"


def settings(**given: Any) -> WorkerSettings:
    return WorkerSettings(**given)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a model, and an environment without model settings."""
    for name in list(os.environ):
        if name.startswith(("MODEL_", "EMBED", "SLUICE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def machine_with(root: Path, fetch: Fetch = UP, **given: Any) -> Machine:
    models = {"SLUICE_MODELS_DIR": str(root / "models")}
    return make_machine(root, fetch=fetch, worker_settings=settings(**given), environ=models)


def test_no_model_server_configured(bare: Path) -> None:
    found = finding_of(checks.server, machine_with(bare))
    assert (found.status, found.seen) == (Health.NOTE, "no model server is configured")
    assert "make model" in found.fix
    write(bare, "/etc/systemd/system/redis-gateway.service")
    assert "--with-model" in finding_of(checks.server, machine_with(bare)).fix
    for check in (checks.name, checks.slots):
        with pytest.raises(CheckSkipped):
            check.run(machine_with(bare))


def test_server_answers(bare: Path) -> None:
    subject = machine_with(bare, model_url=URL)
    assert status_of(checks.server, subject) is Health.OK
    assert finding_of(checks.name, subject).seen == "small, large"
    assert finding_of(checks.slots, subject).seen == "1 of 2 slots busy"


def test_origin_of_the_url_is_shown(bare: Path) -> None:
    Announcement(bare / ".sluice").prepare()
    Announcement(bare / ".sluice").write(ServedModel(URL, "small", 1))
    assert "model.json" in finding_of(checks.server, machine_with(bare)).seen
    write(bare, checks.DROP_IN, f"[Service]\nEnvironment=MODEL_URL={URL}/two\n")
    assert (
        f"{URL}/two (from {checks.DROP_IN})" in finding_of(checks.server, machine_with(bare)).seen
    )
    named = machine_with(bare, model_url="http://u:secret@other:1")
    assert finding_of(checks.server, named).seen.startswith("http://u:***@other:1 (from MODEL_URL)")


def test_unreachable_server(bare: Path) -> None:
    def refuse(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        raise ConnectionRefusedError("refused")

    found = finding_of(checks.server, machine_with(bare, refuse, model_url=URL))
    assert (found.status, "MODEL_URL" in found.fix) == (Health.FAIL, True)
    write(bare, checks.DROP_IN, f"[Service]\nEnvironment=MODEL_URL={URL}\n")
    assert "sluice model serve" in finding_of(checks.server, machine_with(bare, refuse)).fix
    write(bare, "/etc/systemd/system/sluice-model.service")
    assert (
        "systemctl start sluice-model" in finding_of(checks.server, machine_with(bare, refuse)).fix
    )
    with pytest.raises(CheckSkipped):
        checks.slots.run(machine_with(bare, refuse))


@pytest.mark.parametrize(
    ("answers", "status", "expected"),
    [
        ({"health": Response(503, b"{}")}, Health.NOTE, "loading"),
        ({"health": OK, "models": Response(401, b"{}")}, Health.FAIL, "rejects the request"),
        ({"health": OK, "models": Response(200, b"<html>")}, Health.FAIL, "no list of models"),
    ],
)
def test_server_problems(
    bare: Path, answers: dict[str, Response], status: Health, expected: str
) -> None:
    found = finding_of(checks.server, machine_with(bare, answering(**answers), model_url=URL))
    assert found.status is status
    assert expected in found.seen


def test_unknown_model_name(bare: Path) -> None:
    found = finding_of(checks.name, machine_with(bare, model_url=URL, model_name="none"))
    assert (found.status, "small, large" in found.cause) == (Health.FAIL, True)
    assert (
        status_of(checks.name, machine_with(bare, model_url=URL, model_name="large")) is Health.OK
    )


def test_more_requests_than_slots(bare: Path) -> None:
    assert status_of(checks.slots, machine_with(bare, model_url=URL, model_slots=3)) is Health.WARN
    assert status_of(checks.slots, machine_with(bare, model_url=URL, model_slots=2)) is Health.OK
    without_slots = answering(health=OK, models=MODELS)
    assert status_of(checks.slots, machine_with(bare, without_slots, model_url=URL)) is Health.NOTE
    configured = machine_with(bare, without_slots, model_url=URL, model_slots=4)
    assert status_of(checks.slots, configured) is Health.OK


@pytest.fixture
def small(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small weights, complete and installed."""
    directory = bare / "models"
    for purpose, name in ((Purpose.CHAT, CHAT_FILE), (Purpose.EMBED, "m/model.safetensors")):
        path = write(directory, name, "weights")
        member = ModelFile(name, name, path.stat().st_size, digest(path))
        weights = Weights(purpose, name, "wheel", 1, (member,))
        monkeypatch.setattr(checks, purpose.name, weights)
    monkeypatch.setattr(checks, "engine_version", lambda directory: "1.0")
    return bare


def test_weights(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_of(checks.weights, machine_with(small)) is Health.OK
    with monkeypatch.context() as without:
        without.setattr(checks, "engine_version", lambda directory: None)
        assert status_of(checks.weights, machine_with(small)) is Health.WARN
    write(small, f"models/{CHAT_FILE}", "weightz")
    found = finding_of(checks.weights, machine_with(small))
    assert (found.status, found.fix) == (Health.FAIL, "sluice model install")
    (small / "models" / CHAT_FILE).unlink()
    assert status_of(checks.weights, machine_with(small)) is Health.NOTE


def test_weights_in_the_installer_directory(small: Path) -> None:
    (small / "models").rename(small / "elsewhere")
    write(small, checks.DROP_IN, "[Service]\nEnvironment=SLUICE_MODELS_DIR=/elsewhere\n")
    subject = make_machine(small, worker_settings=settings())
    assert status_of(checks.weights, subject) is Health.OK
    assert status_of(checks.embedder, subject) is Health.OK


def test_embedder(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_of(checks.embedder, machine_with(small)) is Health.OK
    with monkeypatch.context() as without:
        without.setattr(checks, "find_spec", lambda name: None)
        assert "numpy" in finding_of(checks.embedder, machine_with(small)).cause
    write(small, "models/m/model.safetensors", "weightz")
    assert status_of(checks.embedder, machine_with(small)) is Health.FAIL
    (small / "models/m/model.safetensors").unlink()
    assert status_of(checks.embedder, machine_with(small)) is Health.NOTE
    assert status_of(checks.embedder, machine_with(small, embedder="minilm")) is Health.FAIL
    assert status_of(checks.embedder, machine_with(small, embedder="off")) is Health.NOTE
    assert status_of(checks.embedder, machine_with(small, embedder="server")) is Health.FAIL
    assert status_of(checks.embedder, machine_with(small, embed_url=URL)) is Health.OK
    served = machine_with(small, embedder="server", model_url=URL)
    assert status_of(checks.embedder, served) is Health.OK
    away = machine_with(small, answering(models=Response(404, b"")), embed_url=URL)
    assert "EMBED_URL" in finding_of(checks.embedder, away).fix


@pytest.mark.parametrize(
    ("version", "numpy", "status"),
    [("8.4.0", False, Health.OK), ("7.0.15", True, Health.OK), ("7.0.15", False, Health.WARN)],
)
def test_vector_search(
    bare: Path, monkeypatch: pytest.MonkeyPatch, version: str, numpy: bool, status: Health
) -> None:
    class FakeServer(RedisServer):
        answers = True
        info = {"redis_version": version}  # noqa: RUF012

    monkeypatch.setattr(checks, "find_spec", lambda name: object() if numpy else None)
    subject = make_machine(bare, redis=FakeServer(RedisTarget("redis://host", "--redis")))
    assert status_of(checks.vectors, subject) is status


def test_model_unit_is_checked_if_installed(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    assert all(
        units.MODEL not in found.seen for found in findings_of(unit_checks.state, systemd.machine)
    )
    write(tmp_path, f"/etc/systemd/system/{units.MODEL}")
    status, _ = systemd.state(units.MODEL, ActiveState="failed", SubState="failed")
    assert status is Health.FAIL
    write(tmp_path, "/etc/systemd/system/redis-gateway.service")
    assert systemd.machine.remedies.start_worker == "sudo systemctl start redis-worker@ai"


def test_stopped_echo_worker_is_fine_with_other_workers(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    stopped = {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "disabled"}
    assert systemd.state(units.ECHO_WORKER, **stopped)[0] is Health.FAIL
    systemd.units["redis-worker@ai.service"] = dict(RUNNING)
    assert systemd.state(units.ECHO_WORKER, **stopped)[0] is Health.NOTE
