"""`make test-pythons`: sets up Sluice on other Python versions and runs the unit tests there.

Uses only the standard library, because it runs before anything is installed. Each version has its
own virtualenv in `.pythons-venv/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parent.parent
VENVS = ".pythons-venv"
TESTS = ("tests/common", "tests/gateway", "tests/worker")
_NAME = "import sys; print('%d.%d' % sys.version_info[:2])"


def main(names: list[str]) -> int:
    failed = []
    for name in names:
        python = find(name)
        if python is None:
            reason = f"{name} is not installed; PYTHONS= names other interpreters"
            if os.environ.get("CI"):
                print_line(f"failed (needed in CI): {reason}")
                failed.append(name)
            else:
                print_line(f"skipped: {reason}")
        elif not run_tests(python):
            failed.append(name)
    if failed:
        print_line(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def find(name: str) -> str | None:
    """Path of an interpreter that runs: on PATH, or in the versions of pyenv."""
    candidates = [shutil.which(name)]
    version = name.removeprefix("python")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # The command of an installed but not selected version is on PATH and only prints an error.
    candidates += sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/{name}")))
    return next((path for path in candidates if path and version_of(path)), None)


def version_of(python: str) -> str:
    """Version such as 3.10; empty if the interpreter does not run."""
    done = subprocess.run([python, "-c", _NAME], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def run_tests(python: str) -> bool:
    """Sets up a virtualenv as `make setup` does, and runs the unit tests on fakeredis."""
    version = version_of(python)
    venv = f"{VENVS}/{version}"
    setup = ["make", "--no-print-directory", "setup", f"VENV={venv}", f"PYTHON={python}"]
    test = [
        *(f"{venv}/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"),
        *("-m", "not process and not topology", "--servers=fakeredis", *TESTS),
    ]
    (PROJECT / VENVS).mkdir(exist_ok=True)
    for what, command in (("make setup", setup), ("tests", test)):
        print_line(f"Python {version}: {what}")
        started = time.monotonic()
        code = subprocess.run(command, cwd=PROJECT).returncode
        print_line(f"Python {version}: {what}: {time.monotonic() - started:.0f} s")
        if code != 0:
            return False
    return True


def print_line(line: str) -> None:
    print(f"[pythons] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
