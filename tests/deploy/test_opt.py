"""The scripts that the units run import the packages of the venv, not neighbouring files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPT = ROOT / "deploy" / "opt"
HOMES = {
    "main.py": "redis-gateway",
    "echo_worker.py": "redis-worker",
    "worker.py": "redis-worker",
    "model.py": "sluice-model",
}


def test_every_script_has_a_directory() -> None:
    assert {path.name for path in OPT.glob("*.py")} == set(HOMES)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            name, marks=[] if name == "worker.py" else pytest.mark.slow("starts a process")
        )
        for name in HOMES
    ],
)
def test_a_script_runs_the_package_of_its_name(script: str, tmp_path: Path) -> None:
    """Neighbouring scripts must not be imported instead of a package."""
    for name, home in HOMES.items():
        (tmp_path / home).mkdir(exist_ok=True)
        shutil.copy(OPT / name, tmp_path / home / name)
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", tmp_path / HOMES[script] / script],
        env={"PYTHONPATH": str(ROOT), "LOG_LEVEL": "loud"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.stderr.startswith("sluice: LOG_LEVEL='loud': ")
    assert finished.returncode == 78


@pytest.mark.parametrize("script", ["echo_worker.py", "worker.py"])
def test_a_worker_keeps_its_release_during_an_upgrade(script: str, tmp_path: Path) -> None:
    """Handlers are imported with their first job, which may be after the upgrade."""
    module = "main" if script == "worker.py" else "echo_worker"
    for release in ("old", "new"):
        package = tmp_path / release / "sluice" / "worker"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").write_text("")
        (package / "__init__.py").write_text("")
        (package / "handler.py").write_text(f"release = {release!r}\n")
        (package / f"{module}.py").write_text(
            "import os\n"
            "def main():\n"
            "    os.unlink('link')\n"
            "    os.symlink('new', 'link')\n"
            "    from sluice.worker import handler\n"
            "    print(handler.release)\n"
        )
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "opt").mkdir()
    shutil.copy(OPT / script, tmp_path / "opt" / script)
    finished = subprocess.run(
        [sys.executable, tmp_path / "opt" / script],
        env={"PYTHONPATH": str(tmp_path / "link")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stdout == "old\n"
