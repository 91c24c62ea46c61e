"""Fake machines for the checks: files below a directory, scripted commands and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.doctor.finding import Check, Finding, Health
from ops.doctor.machine import NOT_FOUND, Disk, Machine, Output, Runner
from ops.doctor.redis_server import RedisServer
from ops.http import Fetch, Response
from ops.redis_target import RedisTarget
from tests.support.servers import RealServer

GB = 1 << 30
ROOMY = Disk(100 * GB, 50 * GB, 1000, 900, read_only=False)


def write(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
    """Write a file of the machine."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def make_machine(root: Path, **options: Any) -> Machine:
    """A machine without files, commands, gateway or Redis, except for the given options."""
    defaults: dict[str, Any] = {
        "run": lambda words, timeout_s: Output(NOT_FOUND, f"{words[0]}: not found"),
        "fetch": refuse,
        "disk": lambda path: ROOMY,
        "url": "http://127.0.0.1:8080",
    }
    return Machine(root=root, **{**defaults, **options})


def refuse(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
    """A fetch function for a port on which no server listens."""
    raise ConnectionRefusedError


def answering(**answers: Response) -> Fetch:
    """A fetch function that answers by the last segment of the path."""

    def fetch(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
        name = url.rsplit("/", 1)[1].replace(".", "_").replace("-", "_")
        return answers.get(name, answers.get("others", Response(404, b"{}")))

    return fetch


def commands(**outputs: str) -> Runner:
    """A command runner that prints the given texts, chosen by any word of the command."""

    def run(words: Sequence[str], timeout_s: float) -> Output:
        for word in words:
            text = outputs.get(word.replace("-", "_"))
            if text is not None:
                return Output(0, text)
        return Output(NOT_FOUND, f"{words[0]}: not found")

    return run


def finding_of(check: Check, machine: Machine) -> Finding:
    """The single finding of a check."""
    found = check.run(machine)
    assert isinstance(found, Finding)
    if found.status in (Health.WARN, Health.FAIL):
        assert found.cause, "a problem has a cause"
        assert found.fix, "a problem has a fix"
    return found


def status_of(check: Check, machine: Machine) -> Health:
    """The status of a check with one finding."""
    return finding_of(check, machine).status


def findings_of(check: Check, machine: Machine) -> list[Finding]:
    """All findings of a check."""
    found = check.run(machine)
    assert isinstance(found, list)
    for finding in found:
        if finding.status in (Health.WARN, Health.FAIL):
            assert finding.cause
            assert finding.fix
    return found


def real_machine(server: RealServer, **options: Any) -> Machine:
    """This machine, with a real Redis."""
    return make_machine(Path("/"), redis=RedisServer(RedisTarget(server.url, "--redis")), **options)
