"""Installs packages into the virtualenv of a checkout, for `make run` and `make setup`.

Runs before anything is installed, so it uses only the standard library. Packages are installed with
uv if it is on the PATH, else with pip; both check the hashes of the lock file.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.common.errors import SluiceError
from sluice.common.process.redis_server import find_server, has_wheel
from sluice.ops.terminal import show_progress

ROOT = Path(__file__).resolve().parent.parent
#: Gateway, workers and a private Redis; and everything.
RUN_LOCK, DEV_LOCK = ROOT / "requirements-run.lock", ROOT / "requirements.lock"
LOCKS = {"run": RUN_LOCK, "dev": DEV_LOCK}


class SetupFailed(SluiceError):
    """A step failed; the message has the output of its command."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.setup")
    parser.add_argument("venv", type=Path)
    parser.add_argument("lock", choices=LOCKS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="install these packages of it")
    parser.add_argument(
        "--wheelhouse", type=Path, metavar="DIR", help="take them from DIR, offline"
    )
    parser.add_argument("--need-redis", action="store_true", help="fail if no server can be found")
    arguments = parser.parse_args(words)
    try:
        if arguments.need_redis:
            require_server()
        python = create_venv(arguments.venv)
        # Tests import most modules, in several processes at once. `make run` imports some.
        installer = Installer(python, shutil.which("uv"), compiles=arguments.lock == "dev")
        if arguments.only:
            installer.add(LOCKS[arguments.lock], arguments.only, arguments.wheelhouse)
        else:
            installer.install(LOCKS[arguments.lock])
        if arguments.lock == "run":
            installer.install_project()
            subprocess.run([python, "-m", "deploy.ensure_redis"], cwd=ROOT, check=True)
    except SluiceError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def require_server() -> None:
    """Raise NoRedisServer, before anything is installed, if the set-up cannot provide a server."""
    if not has_wheel() and not os.environ.get("REDIS_URL"):
        find_server()


def create_venv(venv: Path) -> Path:
    """The interpreter of the virtualenv, which is created if it does not exist."""
    python = venv.absolute() / "bin" / "python"
    if not os.access(python, os.X_OK):
        # Not `uv venv`: it would have no pip, which `sluice model install` needs.
        _run(
            f"creating {venv}",
            [sys.executable, "-m", "venv", str(venv)],
            "on Debian and Ubuntu: apt-get install python3-venv",
        )
    return python


class Installer:
    """Installs packages with uv or pip."""

    def __init__(self, python: Path, uv: str | None, *, compiles: bool = False) -> None:
        """`compiles`: compile all modules now, instead of each when it is first imported."""
        self._python = python
        self._uv = uv
        self._compiles = compiles

    def install(self, lock: Path) -> None:
        """Install all packages of a lock file; those that are installed already are kept."""
        count = len({entry.partition("==")[0] for entry in entries(lock.read_text())})
        self._install(f"up to {count} packages", "--require-hashes", "-r", str(lock))

    def add(self, lock: Path, names: list[str], wheelhouse: Path | None = None) -> None:
        """Install some packages of a lock file, without their dependencies."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
            chosen.writelines(entries(lock.read_text(), *names))
            chosen.flush()
            words = ["--no-deps", "--require-hashes", "-r", chosen.name]
            if wheelhouse is not None:
                words += ["--no-index", "--find-links", str(wheelhouse)]
            self._install(", ".join(names), *words)

    def install_project(self) -> None:
        """Install Sluice in editable mode; what builds it is part of the lock files."""
        self._install("sluice", "--no-build-isolation", "--no-deps", "-e", str(ROOT))

    def _install(self, what: str, *words: str) -> None:
        if self._uv is not None:
            uv = [self._uv, "pip", "install", "--python", str(self._python), *words]
            uv += ["--compile-bytecode"] if self._compiles else []
            try:
                _run(f"installing {what} with uv", uv)
                return
            except SetupFailed as error:  # uv does not read the index settings of pip
                print(f"{error}\ntrying pip", file=sys.stderr)
        pip = [str(self._python), "-m", "pip", "install", "--disable-pip-version-check"]
        pip += ["--no-input", "--compile" if self._compiles else "--no-compile", *words]
        _run(f"installing {what} with pip", pip)


def entries(lock: str, *names: str) -> list[str]:
    """The entries of a lock file with their hashes; all, or those of the named packages."""
    found = re.findall(r"^[A-Za-z0-9].*\n(?:[ ].*\n)*", lock, re.MULTILINE)
    return [entry for entry in found if not names or entry.partition("==")[0] in names]


def _run(what: str, command: list[str], fix: str = "") -> None:
    print(what, flush=True)
    with show_progress(what):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    if done.returncode != 0:
        hint = f"\n{fix}" if fix else ""
        raise SetupFailed(f"{what}: exit code {done.returncode}\n{done.stdout.strip()}{hint}")


if __name__ == "__main__":
    sys.exit(main())
