"""A frozen process is killed and restarted, and its job is finished."""

from __future__ import annotations

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, URL, WORKER, post, wait_until

WATCHDOG_S = 3


@pytest.fixture
def short_watchdog(machine: Machine) -> None:
    """Waiting for the installed timeouts would take minutes."""
    settings = "ECHO_DELAY_MS=4000 LEASE_MS=6000"
    drop_in = f"[Service]\nWatchdogSec={WATCHDOG_S}\nEnvironment={settings}\n"
    for unit in (WORKER, GATEWAY):
        machine.write(f"/etc/systemd/system/{unit}.d/test.conf", drop_in)
    machine.run(f"systemctl daemon-reload && systemctl restart {WORKER} {GATEWAY}")


def freeze(machine: Machine, unit: str) -> str:
    pid = machine.prop(unit, "MainPID")
    machine.run(f"kill -s STOP {pid}")
    return pid


def wait_for_restart(machine: Machine, unit: str, pid: str) -> None:
    machine.wait_for(
        lambda: machine.prop(unit, "MainPID") not in (pid, "0"), WATCHDOG_S + 20, f"a new {unit}"
    )


@pytest.mark.usefixtures("short_watchdog")
def test_a_frozen_worker_is_restarted_and_its_job_finished(machine: Machine) -> None:
    job_id = post(machine)
    wait_until(machine, job_id, "running")
    wait_for_restart(machine, WORKER, freeze(machine, WORKER))
    assert "Watchdog timeout" in machine.journal("-b", f"-u{WORKER}")
    wait_until(machine, job_id, "done", timeout_s=60)


@pytest.mark.usefixtures("short_watchdog")
def test_a_frozen_gateway_is_restarted_and_answers_requests(machine: Machine) -> None:
    frozen = freeze(machine, GATEWAY)
    waiting = machine.start(f"curl -sS --max-time 60 {URL}/healthz")
    wait_for_restart(machine, GATEWAY, frozen)
    answer, complaints = waiting.communicate(timeout=70)
    assert waiting.returncode == 0, complaints
    assert "ok" in answer
