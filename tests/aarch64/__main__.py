"""`make test-aarch64`: set-up, `make run`, model and smoke tests in an emulated aarch64 Debian."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.ops.model.catalogue import LOCK as MODEL_LOCK
from tests.aarch64.chroot import PROJECT, Chroot, CommandFailed, base_tree
from tests.aarch64.emulation import emulator, what_is_missing
from tests.aarch64.smoke import SERVERS, TESTS
from tests.system.cache import built_once, scratch
from tests.system.wheelhouse import PROJECT as CHECKOUT
from tests.system.wheelhouse import copy_project

VENV = ".venv"
PYTHON = f"{VENV}/bin/python"
#: The process has a private mount namespace if it was started with this option.
_INSIDE = "--in-mount-namespace"
#: Limits that end a run that hangs; they measure nothing.
SETUP_S = 3600.0
STEP_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-aarch64")
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    reason = what_is_missing()
    if reason is not None:
        in_ci = bool(os.environ.get("CI"))
        print_line(f"{'failed (needed in CI)' if in_ci else 'skipped'}: {reason}")
        return 1 if in_ci else 0
    if not arguments.in_mount_namespace:
        again = [sys.executable, "-m", "tests.aarch64", _INSIDE]
        os.execvp("unshare", ["unshare", "--mount", *again])
    try:
        with emulator():
            run_steps()
    except CommandFailed as error:
        print_line(f"failed: {error}")
        return 1
    return 0


def run_steps() -> None:
    with step("Debian tree"):
        base = base_tree()
    with step("packages and model of the lock files"):
        prepared = built_once(f"venv-arm64-{fingerprint(base)}", lambda tree: prepare(tree, base))
    with scratch() as directory:
        chroot = Chroot((prepared, base), directory / "aarch64")
        copy_project(chroot.upper / PROJECT.lstrip("/"))
        with step("make setup"):
            # Without the stamps, make checks every package of the lock file again.
            chroot.run(f"rm -f {VENV}/.installed-* && make setup", timeout_s=SETUP_S)
        with step("sluice model install"):
            chroot.run(f"{VENV}/bin/sluice model install", timeout_s=SETUP_S)
        with step("make run and a job"):
            chroot.run(f"{PYTHON} -m tests.aarch64.session echo", timeout_s=STEP_S)
        with step("the embedded model and a job"):
            chroot.run(f"{PYTHON} -m tests.aarch64.session model", timeout_s=STEP_S)
        with step("smoke tests"):
            servers = f"--servers={','.join(SERVERS)}"
            command = f"{PYTHON} -m pytest -q -p no:cacheprovider {servers} {' '.join(TESTS)}"
            chroot.run(command, timeout_s=STEP_S)


def fingerprint(base: Path) -> str:
    """Changes with the lock files and with the Debian tree."""
    locks = (CHECKOUT / "requirements.lock").read_bytes() + MODEL_LOCK.read_bytes()
    return hashlib.sha256(base.name.encode() + locks).hexdigest()[:12]


def prepare(layer: Path, base: Path) -> None:
    """Sets up a virtualenv with all packages and the model, as a layer over the Debian tree."""
    print_line("installing the packages of the lock files (some minutes, once)")
    with scratch() as directory:
        chroot = Chroot((base,), directory / "aarch64")
        copy_project(chroot.upper / PROJECT.lstrip("/"))
        install = f"make setup && {VENV}/bin/sluice model install"
        chroot.run(install, timeout_s=SETUP_S)
        target = layer / PROJECT.lstrip("/") / VENV
        target.parent.mkdir(parents=True)
        shutil.move(chroot.upper / PROJECT.lstrip("/") / VENV, target)


@contextmanager
def step(name: str) -> Iterator[None]:
    print_line(name)
    started = time.monotonic()
    yield
    print_line(f"{name}: {time.monotonic() - started:.0f} s")


def print_line(line: str) -> None:
    print(f"[aarch64] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
