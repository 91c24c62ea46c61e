"""Checks of the model server, the weights and the embedder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sluice.common.settings.models_dir import CHAT_FILE
from sluice.common.settings.worker import WorkerSettings
from sluice.ops.doctor.checks import model as checks
from sluice.ops.doctor.finding import Check, Health
from sluice.ops.doctor.machine import Machine
from sluice.ops.http import Fetch, Response
from sluice.ops.model.announcement import Announcement, ServedModel
from sluice.ops.model.catalogue import ModelFile, Purpose, Weights, digest
from tests.ops.doctor.checks.test_redis import VALKEY, FakeClient, fake_machine
from tests.ops.doctor.machines import (
    answering,
    expect,
    expect_skipped,
    finding_of,
    make_machine,
    refuse,
    write,
)

OK = Response(200, b'{"status":"ok"}')
MODELS = Response(200, b'{"data":[{"id":"small"},{"id":"large"}]}')
SLOTS = Response(200, b'[{"is_processing":true},{"is_processing":false}]')
UP = {"health": OK, "models": MODELS, "slots": SLOTS}
NONE = Response(404, b"{}")
LOADING, LOCKED, HTML = Response(503, b"{}"), Response(401, b"{}"), Response(200, b"<html>")
URL = "http://127.0.0.1:8090"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a model, and an environment without model settings."""
    for name in list(os.environ):
        if name.startswith(("MODEL_", "EMBED", "SLUICE_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def machine_with(root: Path, fetch: Fetch | None = None, **given: Any) -> Machine:
    fetch = fetch or answering(**UP)
    models = {"SLUICE_MODELS_DIR": str(root / "models")}
    return make_machine(root, fetch=fetch, worker_settings=WorkerSettings(**given), environ=models)


def test_no_model_server_configured(bare: Path) -> None:
    found = expect(checks.server, machine_with(bare), Health.NOTE, fix="make model")
    assert found.seen == "no model server is configured"
    write(bare, "/etc/systemd/system/redis-gateway.service")
    expect(checks.server, machine_with(bare), Health.NOTE, fix="--with-model")
    for check in (checks.name, checks.slots):
        expect_skipped(check, machine_with(bare))


@pytest.mark.parametrize(
    ("check", "answers", "given", "status", "texts"),
    [
        (checks.server, {}, {}, Health.OK, {}),
        (checks.server, {"health": LOADING}, {}, Health.NOTE, {"seen": "loading"}),
        (checks.server, {"models": LOCKED}, {}, Health.FAIL, {"seen": "rejects the request"}),
        (checks.server, {"models": HTML}, {}, Health.FAIL, {"seen": "no list of models"}),
        (checks.name, {}, {}, Health.OK, {"seen": "small, large"}),
        (checks.name, {}, {"model_name": "large"}, Health.OK, {}),
        (checks.name, {}, {"model_name": "none"}, Health.FAIL, {"cause": "small, large"}),
        (checks.slots, {}, {}, Health.OK, {"seen": "1 of 2 slots busy"}),
        (checks.slots, {}, {"model_slots": 2}, Health.OK, {}),
        (checks.slots, {}, {"model_slots": 3}, Health.WARN, {}),
        (checks.slots, {"slots": NONE}, {}, Health.NOTE, {}),
        (checks.slots, {"slots": NONE}, {"model_slots": 4}, Health.OK, {}),
    ],
)
def test_findings_of_a_configured_server(
    bare: Path,
    check: Check,
    answers: dict[str, Response],
    given: dict[str, Any],
    status: Health,
    texts: dict[str, str],
) -> None:
    subject = machine_with(bare, answering(**{**UP, **answers}), model_url=URL, **given)
    expect(check, subject, status, **texts)


def test_origin_of_the_url_is_shown(bare: Path) -> None:
    Announcement(bare / ".sluice").prepare()
    Announcement(bare / ".sluice").write(ServedModel(URL, "small", 1))
    expect(checks.server, machine_with(bare), Health.OK, seen="model.json")
    write(bare, checks.DROP_IN, f"[Service]\nEnvironment=MODEL_URL={URL}/two\n")
    seen = f"{URL}/two (from {checks.DROP_IN})"
    expect(checks.server, machine_with(bare), Health.OK, seen=seen)
    named = machine_with(bare, model_url="http://u:secret@other:1")
    assert finding_of(checks.server, named).seen.startswith("http://u:***@other:1 (from MODEL_URL)")


def test_unreachable_server(bare: Path) -> None:
    subject = machine_with(bare, refuse, model_url=URL)
    expect(checks.server, subject, Health.FAIL, fix="MODEL_URL")
    write(bare, checks.DROP_IN, f"[Service]\nEnvironment=MODEL_URL={URL}\n")
    expect(checks.server, machine_with(bare, refuse), Health.FAIL, fix="sluice model serve")
    write(bare, "/etc/systemd/system/sluice-model.service")
    fix = "systemctl start sluice-model"
    expect(checks.server, machine_with(bare, refuse), Health.FAIL, fix=fix)
    expect_skipped(checks.slots, machine_with(bare, refuse))


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
    expect(checks.weights, machine_with(small), Health.OK)
    with monkeypatch.context() as without:
        without.setattr(checks, "engine_version", lambda directory: None)
        expect(checks.weights, machine_with(small), Health.WARN)
    write(small, f"models/{CHAT_FILE}", "weightz")
    found = expect(checks.weights, machine_with(small), Health.FAIL)
    assert found.fix == "sluice model install"
    (small / "models" / CHAT_FILE).unlink()
    expect(checks.weights, machine_with(small), Health.NOTE)


def test_weights_in_the_installer_directory(small: Path) -> None:
    (small / "models").rename(small / "elsewhere")
    write(small, checks.DROP_IN, "[Service]\nEnvironment=SLUICE_MODELS_DIR=/elsewhere\n")
    subject = make_machine(small, worker_settings=WorkerSettings())
    expect(checks.weights, subject, Health.OK)
    expect(checks.embedder, subject, Health.OK)


def test_embedder_of_installed_weights(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(checks.embedder, machine_with(small), Health.OK)
    with monkeypatch.context() as without:
        without.setattr(checks, "find_spec", lambda name: None)
        assert "numpy" in finding_of(checks.embedder, machine_with(small)).cause
    write(small, "models/m/model.safetensors", "weightz")
    expect(checks.embedder, machine_with(small), Health.FAIL)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, Health.NOTE),
        ({"embedder": "off"}, Health.NOTE),
        ({"embedder": "minilm"}, Health.FAIL),
        ({"embedder": "server"}, Health.FAIL),
        ({"embedder": "server", "model_url": URL}, Health.OK),
        ({"embed_url": URL}, Health.OK),
    ],
)
def test_embedder_without_weights(bare: Path, given: dict[str, Any], status: Health) -> None:
    expect(checks.embedder, machine_with(bare, **given), status)


def test_unreachable_embedding_server(bare: Path) -> None:
    away = machine_with(bare, answering(models=NONE), embed_url=URL)
    assert "EMBED_URL" in finding_of(checks.embedder, away).fix


@pytest.mark.parametrize(
    ("info", "numpy", "status", "seen"),
    [
        ({"redis_version": "8.4.0"}, False, Health.OK, "Redis 8.4.0 has vector sets"),
        ({"redis_version": "7.0.15"}, True, Health.OK, "Redis 7.0.15 has no vector sets"),
        ({"redis_version": "7.0.15"}, False, Health.WARN, "Redis 7.0.15 has no vector sets"),
        (VALKEY, True, Health.OK, "Valkey 9.1.0 has no vector sets"),
        (VALKEY, False, Health.WARN, "Valkey 9.1.0 has no vector sets"),
    ],
)
def test_vector_search(
    bare: Path,
    monkeypatch: pytest.MonkeyPatch,
    info: dict[str, str],
    numpy: bool,
    status: Health,
    seen: str,
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: object() if numpy else None)
    expect(checks.vectors, fake_machine(FakeClient(info), bare), status, seen=seen)
