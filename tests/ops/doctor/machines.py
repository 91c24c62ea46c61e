"""Fake machines for the checks: files below a directory, scripted commands and responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.common.observability.heartbeats import Heartbeat
from sluice.common.settings.worker import WorkerSettings
from sluice.common.version import VERSION
from sluice.ops.doctor.finding import Check, CheckSkipped, Finding, Health
from sluice.ops.doctor.machine import NOT_FOUND, Disk, Machine, Output, Runner
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.http import Fetch, Response
from sluice.ops.redis_target import RedisTarget
from tests.support.servers import RealServer

GB = 1 << 30
GROUP = "workers"
ROOMY = Disk(100 * GB, 50 * GB, 1000, 900, read_only=False)


def write(root: Path, name: str, text: str = "", mode: int = 0o644) -> Path:
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
    found = check.run(machine)
    assert isinstance(found, Finding)
    if found.status in (Health.WARN, Health.FAIL):
        assert found.cause, "a problem has a cause"
        assert found.fix, "a problem has a fix"
    return found


def expect(check: Check, machine: Machine, status: Health, **texts: str) -> Finding:
    """Runs a check with one finding; `texts` are parts of its `seen`, `cause` and `fix`."""
    found = finding_of(check, machine)
    assert found.status is status, found
    for name, text in texts.items():
        assert text in getattr(found, name), found
    return found


def expect_skipped(check: Check, machine: Machine, reason: str | None = None) -> None:
    with pytest.raises(CheckSkipped, match=reason):
        check.run(machine)


def findings_of(check: Check, machine: Machine) -> list[Finding]:
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


class Queue:
    """A queue on a real server, which a test fills and the doctor checks."""

    def __init__(self, server: RealServer, settings: WorkerSettings) -> None:
        self.client: Any = server.client
        self.keys = settings.partitions.keys
        self._server, self._settings = server, settings
        self.client.flushall()

    def machine(self, **options: Any) -> Machine:
        """A machine without cached readings."""
        return real_machine(self._server, **{"worker_settings": self._settings, **options})

    def expect(self, check: Check, status: Health, **texts: str) -> Finding:
        return expect(check, self.machine(), status, **texts)

    def create_groups(self) -> None:
        for keys in self.keys:
            self.client.xgroup_create(keys.queue, GROUP, id="0", mkstream=True)

    def enqueue(self, partition: int = 0, *, age_s: float = 0.0) -> None:
        entry_id = f"{int((time.time() - age_s) * 1000)}-1" if age_s else "*"
        fields = {"job_id": "a", "task": "chat", "payload": "{}"}
        self.client.xadd(self.keys[partition].queue, fields, id=entry_id)

    def take(self, partition: int = 0, *, idle_ms: int = 0, consumer: str = "w1") -> None:
        """Lets a consumer take a message and stay inactive for `idle_ms`."""
        queue = self.keys[partition].queue
        [[_, [[entry_id, _]]]] = self.client.xreadgroup(GROUP, consumer, {queue: ">"}, count=1)
        self.client.xclaim(queue, GROUP, consumer, 0, [entry_id], idle=idle_ms)

    def beat(self, name: str = "w1", **values: Any) -> None:
        now_ms = int(time.time() * 1000)
        values = {"version": VERSION, "max_inflight": 4, "seen_ms": now_ms, **values}
        heartbeat = Heartbeat(consumer=name, **values).to_json()
        self.client.set(self.keys[0].worker(name), heartbeat, ex=60)
        self.client.zadd(self.keys[0].workers, {name: now_ms})
