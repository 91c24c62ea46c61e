"""Actions of operators and customers on a machine with Sluice installed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.machine import CommandResult, Machine

PROJECT = "/root/sluice"
WHEELHOUSE = "/root/wheelhouse"
TOOLS = "/root/tools"

REDIS = "redis.service"
SOCKET = "redis-gateway.socket"
GATEWAY = "redis-gateway.service"
WORKER = "redis-echo-worker.service"
UNITS = (REDIS, SOCKET, GATEWAY, WORKER)
SERVICES = (REDIS, GATEWAY, WORKER)

URL = "http://127.0.0.1:8080"
CREDENTIALS = "/etc/sluice/credentials"
EX_CONFIG = "78"
TERMINAL = ("done", "error", "canceled")


def installer(
    machine: Machine,
    arguments: str,
    *,
    code: int | None = 0,
    project: str = PROJECT,
    timeout_s: float = 300.0,
) -> CommandResult:
    return machine.run(f"{project}/deploy/install.sh {arguments}", code=code, timeout_s=timeout_s)


def install(machine: Machine, options: str = "") -> CommandResult:
    """Installs from the project, offline, without confirmation."""
    return installer(machine, f"install --wheelhouse {WHEELHOUSE} --yes {options}")


def curl(machine: Machine, arguments: str, **options: Any) -> str:
    return machine.run(f"curl -sS --max-time 30 {arguments}", **options).stdout


def ask(machine: Machine, arguments: str, body: object = None) -> dict[str, Any]:
    """Sends a request with curl, and the body as JSON; returns the response body."""
    data = ""
    if body is not None:
        data = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    response: dict[str, Any] = json.loads(curl(machine, f"{arguments} {data}"))
    return response


def post(machine: Machine, task: str = "chat", **payload: object) -> str:
    job = {"task": task, "payload": payload or {"text": "hello"}}
    job_id: str = ask(machine, f"{URL}/v1/jobs", job)["job_id"]
    return job_id


def job(machine: Machine, job_id: str) -> dict[str, Any]:
    return ask(machine, f"{URL}/v1/jobs/{job_id}")


def wait_until(machine: Machine, job_id: str, status: str, timeout_s: float = 30.0) -> None:
    machine.wait_for(
        lambda: job(machine, job_id).get("status") == status, timeout_s, f"{job_id} to be {status}"
    )


def run_job(machine: Machine, text: str = "hello") -> str:
    job_id = post(machine, text=text)
    wait_until(machine, job_id, "done")
    return job_id


def replace_worker(machine: Machine, unit: str) -> None:
    machine.run(f"systemctl disable --now {WORKER} && systemctl enable --now {unit}")


def states(machine: Machine, *units: str) -> list[str]:
    return machine.run(f"systemctl is-active {' '.join(units)}", code=None).stdout.split()


def assert_no_warnings(machine: Machine, *units: str) -> None:
    complaints = machine.journal("-b", "-p", "warning", *(f"-u{unit}" for unit in units))
    assert complaints in ("", "-- No entries --\n")


def assert_failed_permanently(machine: Machine, unit: str, reason: str) -> None:
    """The unit stopped because of an invalid setting, which its status names."""
    state = machine.unit(unit, "ActiveState", "SubState", "ExecMainStatus", "NRestarts")
    assert state == {
        "ActiveState": "failed",
        "SubState": "failed",
        "ExecMainStatus": EX_CONFIG,
        "NRestarts": "0",
    }
    assert reason in machine.run(f"systemctl status {unit}", code=None).stdout


def redis_as(machine: Machine, role: str, *command: str) -> str:
    """Runs a Redis command with an installed credential; errors are returned as text."""
    return redis_lines(machine, role, [command])[0]


def redis_lines(machine: Machine, role: str, commands: Sequence[tuple[str, ...]]) -> list[str]:
    """Runs Redis commands with an installed credential; one reply (JSON or error text) each."""
    # redis-cli does not support unix:// URLs; the installed client does.
    result = machine.run(
        f"/opt/redis-gateway/venv/bin/python {TOOLS}/ask_redis.py {CREDENTIALS}/{role}.redis_url",
        stdin=json.dumps(commands),
    )
    answers: list[str] = json.loads(result.stdout)
    return answers


@dataclass
class Report:
    """The report of the load."""

    jobs: dict[str, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    @property
    def connection_troubles(self) -> list[str]:
        """Requests that were refused, reset or not answered."""
        return [line for line in self.troubles if not line.split()[1].isdecimal()]


@contextmanager
def load(machine: Machine, customers: int = 4, pause_s: float = 0.02) -> Iterator[Report]:
    """Posts jobs within the block; afterwards the report is complete."""
    report = Report()
    process = machine.start(
        f"exec python3 {TOOLS}/load.py --customers {customers} --pause-s {pause_s}"
    )
    try:
        yield report
    except BaseException:
        process.kill()
        process.communicate()
        raise
    try:
        job_record, complaints = process.communicate(input="", timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        job_record, complaints = process.communicate()
    assert process.returncode == 0, f"the load client failed:\n{complaints}"
    vars(report).update(json.loads(job_record))


def backlog(machine: Machine) -> int:
    """Waiting and running jobs: pending and not yet delivered messages.

    After a restart, Redis does not know the lag (null) until the group has read the last message.
    """
    group = json.loads(redis_as(machine, "admin", "XINFO", "GROUPS", "jobs:stream"))[0]
    counts = paired(group)
    lag = 1 if counts["lag"] is None else int(counts["lag"])
    return int(counts["pending"]) + lag


def paired(names_and_values: list[Any]) -> dict[str, Any]:
    """Converts a flat list of names and values to a mapping."""
    return dict(zip(names_and_values[::2], names_and_values[1::2]))


def assert_each_done_once(machine: Machine, report: Report, timeout_s: float = 90.0) -> None:
    """Every accepted job is done and has exactly one terminal event; nothing waits or runs."""
    assert report.jobs, "the load client got no job accepted"
    assert len(set(report.jobs.values())) == len(report.jobs), "two keys got the same job"
    machine.wait_for(lambda: backlog(machine) == 0, timeout_s, "the backlog to be worked off")
    job_ids = list(report.jobs.values())
    commands = [("XRANGE", f"job:{job_id}:events", "-", "+") for job_id in job_ids]
    wrong = {}
    for job_id, answer in zip(job_ids, redis_lines(machine, "admin", commands)):
        types = [paired(fields)["type"] for _, fields in json.loads(answer)]
        ends = [type for type in types if type in TERMINAL]
        if ends != ["done"] or types[-1] != "done":
            wrong[job_id] = types
    assert not wrong, f"{len(wrong)} of {len(job_ids)} jobs did not end once and well: {wrong}"


def put_tools(target: Path) -> None:
    """Copies the scripts that run inside."""
    target.mkdir(parents=True)
    for name in ("load.py", "ask_redis.py", "probe.py"):
        shutil.copy2(Path(__file__).with_name(name), target)
