"""`sluice doctor` and `sluice audit --local` against real processes: output and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.processes import commands
from tests.support.processes.commands import SLUICE, CommandResult, Terminal, unused_url
from tests.support.processes.gateway import StartGateway, environment
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
Command = Callable[..., CommandResult]
Findings = dict[str, dict[str, str]]
#: Checks that depend on the machine that runs the tests.
MACHINE_CHECKS = ("host", "jetson", "units", "secrets")
#: Likewise: the load of the machine, and its other users.
MACHINE_FINDINGS = ("redis.latency", "gateway.local_access")
HEALTHY, UNHEALTHY, USAGE, UNAVAILABLE, MISCONFIGURED = 0, 1, 2, 5, 78
SLOW = pytest.mark.slow("starts a gateway, a worker and commands")


def examine(run: Command, *args: str, **settings: str) -> Findings:
    ran = run("doctor", "-o", "json", *args, **settings)
    report = json.loads(ran.out)
    assert ran.code == (HEALTHY if report["healthy"] else UNHEALTHY)
    return {finding["check"]: finding for finding in report["findings"]}


def wrong(findings: Findings) -> Findings:
    """Failed checks, except those about the machine."""
    return {
        name: finding
        for name, finding in findings.items()
        if finding["status"] in ("warn", "fail")
        and name.partition(".")[0] not in MACHINE_CHECKS
        and name not in MACHINE_FINDINGS
    }


class Installation:
    """Gateway and worker on a private Redis."""

    def __init__(
        self, directory: Path, start_gateway: StartGateway, spawn: Callable[..., Process]
    ) -> None:
        self.dir = directory
        self._spawn = spawn
        self.settings = {"SLUICE_DATA_DIR": str(directory / "data"), "LC_ALL": "C.UTF-8"}
        self.gateway = start_gateway("", **self.settings)
        self.worker = self.start_worker()

    def start_worker(self) -> Process:
        return self._spawn("worker.echo_worker", consumer="w1", heartbeat_s=0.2, **self.settings)

    def run(self, *args: str) -> CommandResult:
        return commands.run(*args, "--url", self.gateway.url, cwd=self.dir, **self.settings)

    def examine(self) -> Findings:
        return examine(self.run)

    def wait_for_worker(self) -> None:
        wait_until(lambda: self.examine()["queue.workers"]["status"] == "ok", 60)

    @property
    def redis_pid(self) -> int:
        return int((self.dir / "data/redis/redis.pid").read_text())


@pytest.fixture
def installation(
    tmp_path: Path, start_gateway: StartGateway, spawn: Callable[..., Process]
) -> Iterator[Installation]:
    installation = Installation(tmp_path, start_gateway, spawn)
    yield installation
    # The worker stops first: the last process stops the private Redis.
    installation.worker.send_signal(signal.SIGTERM)
    installation.worker.wait(30)
    if installation.gateway.process.poll() is None:
        installation.gateway.stop()


@SLOW
def test_problems_are_reported_by_name(installation: Installation) -> None:
    installation.wait_for_worker()
    job = {"task": "chat", "payload": {"text": "hello"}}
    installation.gateway.http.post("/v1/jobs", json=job, headers={"Prefer": "wait=20"})
    assert wrong(installation.examine()) == {}
    table = installation.run("doctor")
    assert table.code == HEALTHY, table.out
    assert "ok      redis.reachable" in table.out
    assert "(the private Redis under " in table.out
    assert "\x1b" not in table.out
    assert " ok, " in table.out.splitlines()[-1]
    assert table.err == "" or "is taking long" in table.err

    # Without a worker.
    installation.worker.send_signal(signal.SIGTERM)
    installation.worker.wait(30)
    with redis.Redis(unix_socket_path=str(installation.dir / "data/redis/redis.sock")) as client:
        client.xgroup_delconsumer("jobs:stream", "workers", "w1")  # as if that were long ago
    found = wrong(installation.examine())
    assert set(found) == {"queue.workers"}
    assert "python -m sluice.worker.echo_worker" in found["queue.workers"]["fix"]
    installation.worker = installation.start_worker()
    installation.wait_for_worker()

    # Without a gateway.
    installation.gateway.stop()
    found = wrong(installation.examine())
    assert set(found) == {"gateway.answers"}
    assert "python -m sluice.gateway" in found["gateway.answers"]["fix"]


@SLOW
def test_an_unresponsive_redis_does_not_block_the_doctor(installation: Installation) -> None:
    """It ends by itself, and at once with Ctrl-C."""
    os.kill(installation.redis_pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        finished = installation.run("doctor")
        assert time.monotonic() - started < 40
        process = subprocess.Popen(
            (*SLUICE, "doctor", "--url", installation.gateway.url),
            cwd=installation.dir,
            env=environment(**installation.settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert "is taking long" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        os.kill(installation.redis_pid, signal.SIGCONT)
    assert finished.code == UNHEALTHY
    assert "redis.reachable is taking long" in finished.err
    assert "skipped redis.*               Redis does not answer" in finished.out
    assert "fail    gateway.ready" in finished.out
    assert "ok      redis" not in finished.out
    assert "ok      queue" not in finished.out
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_stopped_redis(command: Command, tmp_path: Path) -> None:
    found = examine(command, SLUICE_URL=unused_url())
    assert set(wrong(found)) == {"redis.reachable", "gateway.answers"}
    assert found["redis.reachable"]["fix"] == "sluice up"
    found = examine(command, "--redis", f"unix://x:hunter2@{tmp_path / 'none.sock'}")
    assert "hunter2" not in json.dumps(found)
    assert "No such file" in found["redis.reachable"]["cause"]
    assert found["queue.workers"]["status"] == "skipped"
    assert list(tmp_path.iterdir()) == []  # the doctor writes no files


def test_quiet_strict_and_a_process(server: RealServer, command: Command, tmp_path: Path) -> None:
    words = ("--url", unused_url(), "--redis", server.url)
    quiet = commands.run("doctor", "-q", *words, cwd=tmp_path)
    assert quiet.code == UNHEALTHY
    assert "ok  " not in quiet.out
    assert "fail    redis.append_only" in quiet.out
    assert command("doctor", "--strict", *words).code == UNHEALTHY


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--nonsense"], {}),
        (["--url", "ftp://x"], {}),
        (["--url", "file:///etc/passwd"], {}),
        (["--url", "http://"], {}),
        (["--redis", "http://x"], {}),
        (["--redis", "x:secret"], {}),
        (["-o", "xml"], {}),
        ([], {"SLUICE_URL": "nonsense"}),
    ],
)
def test_invalid_arguments(command: Command, words: list[str], settings: dict[str, str]) -> None:
    ran = command("doctor", *words, **settings)
    assert (ran.code, ran.out) == (USAGE, "")
    assert "secret" not in ran.err


@SLOW
@pytest.mark.parametrize(("settings", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colors_only_on_terminals(settings: dict[str, str], coloured: bool) -> None:
    shown = Terminal("doctor", "--url", unused_url(), **settings)
    try:
        assert shown.end() == UNHEALTHY
        assert ("\x1b[" in shown.shown) == coloured
    finally:
        shown.close()


# -- sluice audit --local ------------------------------------------------------------------


def lost_job(server: RealServer) -> str:
    """A job that will never run: it is old, and its message is gone."""
    client: Any = server.client
    fields = {"job_id": "lost", "task": "chat", "payload": "{}", "status": "queued"}
    times = {"created_ts": "1", "updated_ts": "1", "ttl_s": "60"}
    client.hset("job:lost", mapping={**fields, **times, "result": "", "error": ""})
    client.expire("job:lost", 60)
    client.xadd("job:lost:events", {"type": "queued", "ts": "1", "step": "x", "data": "{}"})
    client.expire("job:lost:events", 60)
    return "lost"


def test_a_local_audit(server: RealServer, command: Command) -> None:
    clean = command("audit", "--local", REDIS_URL=server.url)
    assert clean.code == HEALTHY, clean
    assert clean.out.startswith("0 jobs checked in ")
    job_id = lost_job(server)
    for args in (("--local", "--redis", server.url), ("--redis", server.url)):
        found = command("audit", *args)
        assert found.code == UNHEALTHY, found
        head, row, summary = found.out.splitlines()
        assert head.split() == ["JOB", "RULE", "DETAIL"]
        assert row.split()[:2] == [job_id, "not_queued"]
        assert summary.endswith("1 violation")
    as_json = command("audit", "--local", "-o", "json", REDIS_URL=server.url)
    assert as_json.code == UNHEALTHY
    report = json.loads(as_json.out)
    assert set(report) == {
        *("ts", "jobs_checked", "duration_ms", "violations_total", "complete", "violations")
    }
    assert [found["job_id"] for found in report["violations"]] == [job_id]
    # It is stored as the last check, and the doctor shows it.
    kept = examine(command, "--redis", server.url)["queue.audit"]
    assert kept["status"] == "fail"
    assert "1 violation" in kept["seen"]


def test_a_local_audit_without_a_usable_redis(
    one_server: RealServer, command: Command, tmp_path: Path
) -> None:
    unconfigured = command("audit", "--local")
    assert unconfigured.code == UNAVAILABLE
    assert "no Redis is configured" in unconfigured.err
    gone = command("audit", "--redis", f"unix://{tmp_path}/none")
    assert gone.code == UNAVAILABLE
    assert len(gone.err.splitlines()) == 1
    odd = command("audit", "--redis", "nonsense:secret")
    assert odd.code == UNAVAILABLE
    assert "secret" not in odd.err
    wrong_settings = command("audit", "--local", LEASE_MS="x", REDIS_URL=one_server.url)
    assert wrong_settings.code == MISCONFIGURED
    assert "LEASE_MS" in wrong_settings.err


def test_a_local_audit_with_a_read_only_user(server: RealServer, command: Command) -> None:
    client: Any = server.client
    client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
    client.execute_command("ACL", "SETUSER", "reader", "+time")
    try:
        ran = command("audit", "--redis", server.url.replace("unix://", "unix://reader:pw@"))
        assert ran.code == HEALTHY, ran
        assert "could not be stored" in ran.err
    finally:
        client.execute_command("ACL", "DELUSER", "reader")
