"""`sluice doctor` and `sluice audit --local` against real processes: output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.gateway.processes import PYTHON_M, GatewayProcess, environment, free_port
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process

SLUICE = (sys.executable, "-m", "sluice")
#: Checks that depend on the machine that runs the tests.
MACHINE_CHECKS = ("host", "jetson", "units", "secrets")
HEALTHY, UNHEALTHY, USAGE, UNAVAILABLE, MISCONFIGURED = 0, 1, 2, 5, 78


def run(*args: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        (*SLUICE, *args),
        cwd=cwd,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Traceback" not in finished.stderr + finished.stdout, finished
    return finished


def examine(*args: str, cwd: Path, **settings: str) -> dict[str, dict[str, str]]:
    """Findings by check."""
    finished = run("doctor", "-o", "json", *args, cwd=cwd, **settings)
    report = json.loads(finished.stdout)
    assert finished.returncode == (HEALTHY if report["healthy"] else UNHEALTHY)
    return {finding["check"]: finding for finding in report["findings"]}


def wrong(findings: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Failed checks, except those about the machine."""
    return {
        name: finding
        for name, finding in findings.items()
        if finding["status"] in ("warn", "fail")
        and name.partition(".")[0] not in MACHINE_CHECKS
        and name != "redis.latency"
    }


class Installation:
    """Gateway and worker on a private Redis."""

    def __init__(self, directory: Path, start: Callable[..., Process]) -> None:
        self.dir = directory
        self._start = start
        self.settings = {"SLUICE_DATA_DIR": str(directory / "data"), "LC_ALL": "C.UTF-8"}
        self.gateway = GatewayProcess(
            PYTHON_M, directory / "gateway.log", PORT="0", **self.settings
        ).wait_until_listening()
        self.url = f"http://127.0.0.1:{self.gateway.port}"
        self.worker = self.start_worker()

    def start_worker(self) -> Process:
        return self._start("worker.echo_worker", consumer="w1", heartbeat_s="0.2", **self.settings)

    def examine(self, *args: str) -> dict[str, dict[str, str]]:
        return examine("--url", self.url, *args, cwd=self.dir, **self.settings)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run(*args, cwd=self.dir, **self.settings)

    def wait_for_worker(self) -> None:
        wait_until(lambda: self.examine()["queue.workers"]["status"] == "ok", 60)

    @property
    def redis_pid(self) -> int:
        return int((self.dir / "data/redis/redis.pid").read_text())

    def post(self) -> str:
        request = urllib.request.Request(
            f"{self.url}/v1/jobs",
            data=b'{"task":"chat","payload":{"text":"hello"}}',
            headers={"Content-Type": "application/json", "Prefer": "wait=20"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            job_id: str = json.load(answer)["job_id"]
        return job_id


@pytest.fixture
def installation(tmp_path: Path, spawn: Callable[..., Process]) -> Iterator[Installation]:
    installation = Installation(tmp_path, spawn)
    yield installation
    # The worker stops first: the last process stops the private Redis.
    installation.worker.send_signal(signal.SIGTERM)
    installation.worker.wait(30)
    if installation.gateway.process.poll() is None:
        installation.gateway.stop()
    installation.gateway.close()


def test_problems_are_reported_by_name(installation: Installation) -> None:
    installation.wait_for_worker()
    installation.post()
    assert wrong(installation.examine()) == {}
    table = installation.run("doctor", "--url", installation.url)
    assert table.returncode == HEALTHY, table.stdout
    assert "ok      redis.reachable" in table.stdout
    assert "(the private Redis under " in table.stdout
    assert "\x1b" not in table.stdout
    assert " ok, " in table.stdout.splitlines()[-1]
    assert table.stderr == "" or "is taking long" in table.stderr

    # Without a worker.
    installation.worker.send_signal(signal.SIGTERM)
    installation.worker.wait(30)
    with redis.Redis(unix_socket_path=str(installation.dir / "data/redis/redis.sock")) as client:
        client.xgroup_delconsumer("jobs:stream", "workers", "w1")  # as if that were long ago
    found = wrong(installation.examine())
    assert set(found) == {"queue.workers"}
    assert "python -m worker.echo_worker" in found["queue.workers"]["fix"]
    installation.worker = installation.start_worker()
    installation.wait_for_worker()

    # Without a gateway.
    installation.gateway.stop()
    found = wrong(installation.examine())
    assert set(found) == {"gateway.answers"}
    assert "python -m gateway" in found["gateway.answers"]["fix"]


def test_an_unresponsive_redis_does_not_block_the_doctor(installation: Installation) -> None:
    os.kill(installation.redis_pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        finished = installation.run("doctor", "--url", installation.url)
        assert time.monotonic() - started < 40
    finally:
        os.kill(installation.redis_pid, signal.SIGCONT)
    assert finished.returncode == UNHEALTHY
    assert "redis.reachable is taking long" in finished.stderr
    assert "skipped redis.*               Redis does not answer" in finished.stdout
    assert "fail    gateway.ready" in finished.stdout
    for line in finished.stdout.splitlines():
        if line.startswith(("ok      redis", "ok      queue")):
            pytest.fail(line)


def test_a_stopped_redis(tmp_path: Path) -> None:
    found = examine(cwd=tmp_path, SLUICE_URL=f"http://127.0.0.1:{free_port()}")
    assert set(wrong(found)) == {"redis.reachable", "gateway.answers"}
    assert found["redis.reachable"]["fix"] == "sluice up"
    socket = tmp_path / "none.sock"
    found = examine("--redis", f"unix://x:hunter2@{socket}", cwd=tmp_path)
    assert "hunter2" not in json.dumps(found)
    assert "No such file" in found["redis.reachable"]["cause"]
    assert found["queue.workers"]["status"] == "skipped"
    assert list(tmp_path.iterdir()) == []  # the doctor writes no files


def test_quiet_and_strict(server: RealServer, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    quiet = run("doctor", "-q", "--url", url, "--redis", server.url, cwd=tmp_path)
    assert quiet.returncode == UNHEALTHY
    assert "ok  " not in quiet.stdout
    assert "fail    redis.append_only" in quiet.stdout
    strict = run("doctor", "--strict", "--url", url, "--redis", server.url, cwd=tmp_path)
    assert strict.returncode == UNHEALTHY


def test_settings_of_the_environment(tmp_path: Path) -> None:
    found = examine(cwd=tmp_path, LEASE_MS="x", MAX_INFLIGHTT="4")
    assert found["settings.environment"]["status"] == "fail"
    assert "LEASE_MS" in found["settings.environment"]["seen"]
    assert "did you mean MAX_INFLIGHT?" in found["settings.spelling"]["seen"]


@pytest.mark.parametrize(
    "args",
    [
        ("--nonsense",),
        ("--url", "ftp://x"),
        ("--url", "file:///etc/passwd"),
        ("--url", "http://"),
        ("--redis", "http://x"),
        ("--redis", "x:secret"),
        ("-o", "xml"),
    ],
)
def test_invalid_arguments(tmp_path: Path, args: tuple[str, ...]) -> None:
    finished = run("doctor", *args, cwd=tmp_path)
    assert finished.returncode == USAGE
    assert finished.stdout == ""
    assert "secret" not in finished.stderr
    assert run("doctor", cwd=tmp_path, SLUICE_URL="nonsense").returncode == USAGE


def test_colors_only_on_terminals(tmp_path: Path) -> None:
    for settings, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        terminal, process_end = pty.openpty()
        process = subprocess.Popen(
            (*SLUICE, "doctor", "--url", f"http://127.0.0.1:{free_port()}"),
            cwd=tmp_path,
            env=environment(**settings),
            stdout=process_end,
            stderr=subprocess.DEVNULL,
        )
        os.close(process_end)
        seen = b""
        try:
            while piece := os.read(terminal, 4096):
                seen += piece
        except OSError:  # EIO: the other end is closed
            pass
        finally:
            os.close(terminal)
        assert process.wait(60) == UNHEALTHY
        assert (b"\x1b[" in seen) == coloured


def test_a_closed_pipe_ends_the_command(tmp_path: Path) -> None:
    finished = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m sluice doctor | head -1"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.stderr == "" or "Error" not in finished.stderr


def test_ctrl_c(installation: Installation) -> None:
    os.kill(installation.redis_pid, signal.SIGSTOP)  # so that the doctor is slow
    try:
        process = subprocess.Popen(
            (*SLUICE, "doctor", "--url", installation.url),
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
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_light_commands_do_not_import_heavy_ones(tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['sluice', '--help']\nfrom sluice.cli import main\n"
    code += (
        "try:\n    main()\nfinally:\n    assert not {'redis', 'pydantic', 'ops'} & set(sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert "doctor" in finished.stdout


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


def test_a_local_audit(server: RealServer, tmp_path: Path) -> None:
    clean = run("audit", "--local", cwd=tmp_path, REDIS_URL=server.url)
    assert clean.returncode == HEALTHY, clean
    assert clean.stdout.startswith("0 jobs checked in ")
    job_id = lost_job(server)
    for args in (("--local", "--redis", server.url), ("--redis", server.url)):
        found = run("audit", *args, cwd=tmp_path)
        assert found.returncode == UNHEALTHY, found
        head, row, summary = found.stdout.splitlines()
        assert head.split() == ["JOB", "RULE", "DETAIL"]
        assert row.split()[:2] == [job_id, "not_queued"]
        assert summary.endswith("1 violation")
    as_json = run("audit", "--local", "-o", "json", cwd=tmp_path, REDIS_URL=server.url)
    assert as_json.returncode == UNHEALTHY
    report = json.loads(as_json.stdout)
    assert set(report) == {
        *("ts", "jobs_checked", "duration_ms", "violations_total", "complete", "violations"),
    }
    assert [found["job_id"] for found in report["violations"]] == [job_id]
    # It is stored as the last check, and the doctor shows it.
    kept = examine("--redis", server.url, cwd=tmp_path)["queue.audit"]
    assert kept["status"] == "fail"
    assert "1 violation" in kept["seen"]


def test_a_local_audit_without_a_usable_redis(server: RealServer, tmp_path: Path) -> None:
    unconfigured = run("audit", "--local", cwd=tmp_path)
    assert unconfigured.returncode == UNAVAILABLE
    assert "no Redis is configured" in unconfigured.stderr
    gone = run("audit", "--redis", f"unix://{tmp_path}/none", cwd=tmp_path)
    assert gone.returncode == UNAVAILABLE
    assert len(gone.stderr.splitlines()) == 1
    odd = run("audit", "--redis", "nonsense:secret", cwd=tmp_path)
    assert odd.returncode == UNAVAILABLE
    assert "secret" not in odd.stderr
    wrong_settings = run("audit", "--local", cwd=tmp_path, LEASE_MS="x", REDIS_URL=server.url)
    assert wrong_settings.returncode == MISCONFIGURED
    assert "LEASE_MS" in wrong_settings.stderr


def test_a_local_audit_with_a_read_only_user(server: RealServer, tmp_path: Path) -> None:
    client: Any = server.client
    client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
    client.execute_command("ACL", "SETUSER", "reader", "+time")
    try:
        url = server.url.replace("unix://", "unix://reader:pw@")
        finished = run("audit", "--redis", url, cwd=tmp_path)
        assert finished.returncode == HEALTHY, finished
        assert "could not be stored" in finished.stderr
    finally:
        client.execute_command("ACL", "DELUSER", "reader")
