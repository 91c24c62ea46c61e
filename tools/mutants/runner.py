"""Runs tests against mutants, each job in its own copy of the checkout."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.mutants.mutant import Mutant
from tools.mutants.selection import Step

PLUGIN = Path(__file__).with_name("plugin.py")
#: Exit codes of pytest: failed tests, interrupted (also by an error at import), usage (also by an
#: error in a conftest). Nothing else differs from the unchanged code.
KILLED = (1, 2, 4)
NO_TESTS = 5
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
#: Time to stop the servers of a hung run.
STOP_S = 20.0


@dataclass
class Result:
    """The outcome of one mutant."""

    id: str
    #: killed, timeout (a test did not end), survived, or error (pytest itself failed).
    status: str
    seconds: float
    #: The failed test, if one failed.
    killer: str
    path: str
    line: int
    #: Changed lines, as a diff without context.
    change: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Checkout:
    """A copy of a checkout in which files may be changed."""

    def __init__(self, root: Path, directory: Path, python: Path, servers: Sequence[str]) -> None:
        self._directory = directory / "tree"
        self._temporary = directory / "tmp"
        self._python = python
        self._servers = list(servers)
        self._changes = 0
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_symlink() or (root / name).is_file():
                target = self._directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target, follow_symlinks=False)
        shutil.copy(PLUGIN, directory / "mutants_plugin.py")
        self._plan = directory / "plan.json"

    def record(self, tests: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
        """Runs tests on the unchanged code: the calls and the duration of each that passes."""
        out = self._plan.with_name("map.json")
        self._pytest(tests, {"files": list(files), "out": str(out)}, timeout_s=None)
        recorded: dict[str, Any] = json.loads(out.read_text())
        return recorded

    def run(self, mutant: Mutant, steps: list[Step], timeouts_s: list[float]) -> Result:
        """Runs the steps until a test fails."""
        path = self._directory / mutant.path
        source, times = path.read_text(), path.stat()
        changed = mutant.apply()
        if path.suffix == ".py":
            compile(changed, mutant.path, "exec")
        started = time.monotonic()
        status, killer = "survived" if steps else "error", ""
        path.write_text(changed)
        # A modification time that no other version has: Python caches bytecode by time and size.
        self._changes += 1
        os.utime(path, (times.st_atime, times.st_mtime + 10 * self._changes))
        try:
            for step, timeout_s in zip(steps, timeouts_s):
                files = list(dict.fromkeys(name.partition("::")[0] for name in step.tests))
                code, output = self._pytest(files, step._asdict(), timeout_s, "-x")
                if code == 0 or (code == NO_TESTS and step.other_servers):
                    continue
                status = "timeout" if code is None else "killed" if code in KILLED else "error"
                failed = _FAILED.search(output)
                killer = failed[1] if failed else "" if code is None else output.strip()[-300:]
                break
        finally:
            path.write_text(source)
            os.utime(path, (times.st_atime, times.st_mtime))
        seconds = round(time.monotonic() - started, 2)
        return Result(
            mutant.id, status, seconds, killer, mutant.path, mutant.line, _diff(source, changed)
        )

    def _pytest(
        self, tests: Sequence[str], plan: dict[str, Any], timeout_s: float | None, *options: str
    ) -> tuple[int | None, str]:
        """The exit code (None after the timeout) and the output."""
        self._plan.write_text(json.dumps({"servers": self._servers, **plan}))
        self._temporary.mkdir()
        command = [
            *(str(self._python), "-m", "pytest", "-q", "--no-header", "--tb=no"),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "mutants_plugin"),
            *("--hypothesis-seed=0", *options, *tests),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._plan.parent),
            "MUTANTS_PLAN": str(self._plan),
            "TMPDIR": str(self._temporary),
        }
        log = self._plan.with_name("output.txt")
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=self._directory, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            code: int | None = None
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                _stop(process)
            except BaseException:
                _stop(process)
                raise
        shutil.rmtree(self._temporary, ignore_errors=True)
        shutil.rmtree(self._directory / ".hypothesis", ignore_errors=True)
        return code, log.read_text(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupts pytest, which stops its servers, and kills what is left of its session."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _diff(source: str, changed: str) -> str:
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
