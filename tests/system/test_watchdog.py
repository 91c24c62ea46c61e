"""A frozen process is killed and restarted, and its job is finished."""

from __future__ import annotations

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, URL, WORKER, job, post, wait_until

WATCHDOG_S = 3


@pytest.fixture
def short_watchdog(machine: Machine) -> None:
    """Waiting for the installed timeouts would take minutes."""
    settings = "ECHO_DELAY_MS=4000 LEASE_MS=6000"
    drop_in = f"[Service]\nWatchdogSec={WATCHDOG_S}\nEnvironment={settings}\n"
    for unit in (WORKER, GATEWAY):
        machine.write(f"/etc/systemd/system/{unit}.d/test.conf", drop_in)
    machine.run(f"systemctl daemon-reload && systemctl restart {WORKER} {GATEWAY}")


@pytest.mark.parametrize("unit", [WORKER, GATEWAY])
def test_installed_units_have_a_watchdog(machine: Machine, unit: str) -> None:
    assert machine.prop(unit, "WatchdogUSec") not in ("0", "infinity")


@pytest.mark.usefixtures("short_watchdog")
def test_a_frozen_worker_is_restarted_and_its_job_finished(machine: Machine) -> None:
    job_id = post(machine)["job_id"]
    wait_until(machine, job_id, "running")
    frozen = machine.prop(WORKER, "MainPID")
    machine.run(f"kill -s STOP {frozen}")
    machine.wait_for(
        lambda: machine.prop(WORKER, "MainPID") not in (frozen, "0"),
        WATCHDOG_S + 20,
        "a new worker",
    )
    assert "Watchdog timeout" in machine.journal("-b", f"-u{WORKER}")
    wait_until(machine, job_id, "done", timeout_s=60)
    assert job(machine, job_id)["status"] == "done"


@pytest.mark.usefixtures("short_watchdog")
def test_a_frozen_gateway_is_restarted_and_answers_requests(machine: Machine) -> None:
    frozen = machine.prop(GATEWAY, "MainPID")
    machine.run(f"kill -s STOP {frozen}")
    waiting = machine.start(f"curl -sS --max-time 60 {URL}/healthz")
    machine.wait_for(
        lambda: machine.prop(GATEWAY, "MainPID") not in (frozen, "0"),
        WATCHDOG_S + 20,
        "a new gateway",
    )
    answer, complaints = waiting.communicate(timeout=70)
    assert waiting.returncode == 0, complaints
    assert "ok" in answer
