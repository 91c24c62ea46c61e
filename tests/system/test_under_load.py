"""Operations on the services while customers post jobs: nothing is lost."""

from __future__ import annotations

import time

import pytest

from tests.system.machine import Machine
from tests.system.sluice import (
    GATEWAY,
    REDIS,
    SERVICES,
    WORKER,
    Report,
    assert_each_done_once,
    job,
    load,
)

#: Pause between two operations, so that requests arrive in every state of the service.
PAUSE_S = 1.0


@pytest.fixture(autouse=True, scope="module")
def high_backlog_limit(machine: Machine) -> None:
    """Raises the backlog limit, so that a slow worker causes no refusals. The machine belongs to
    this file.
    """
    settings = machine.read("/etc/sluice/gateway.env")
    machine.write("/etc/sluice/gateway.env", f"{settings}\nBACKPRESSURE_MAX_BACKLOG=100000\n")
    machine.run(f"systemctl restart {GATEWAY}")


@pytest.fixture(autouse=True)
def healthy_before_and_after(machine: Machine):  # type: ignore[no-untyped-def]
    machine.run(f"systemctl start {' '.join(SERVICES)}")
    yield
    machine.run(f"systemctl is-active {' '.join(SERVICES)}")


def until_active(unit: str) -> str:
    """A command that waits until systemd has started a unit again."""
    return f"until systemctl is-active -q {unit}; do sleep 0.1; done"


def operate(machine: Machine, *commands: str) -> Report:
    """Runs operations one after the other under load; returns the report."""
    with load(machine) as report:
        time.sleep(PAUSE_S)
        for command in commands:
            machine.run(command)
            time.sleep(PAUSE_S)
    return report


def test_gateway_restarts_refuse_no_request(machine: Machine) -> None:
    report = operate(machine, *[f"systemctl restart {GATEWAY}"] * 4)
    assert report.troubles == []
    assert_each_done_once(machine, report)


def test_requests_wait_for_a_stopped_gateway(machine: Machine) -> None:
    report = operate(machine, f"systemctl stop {GATEWAY} && sleep 1 && systemctl start {GATEWAY}")
    assert report.troubles == []
    assert_each_done_once(machine, report)


def test_worker_restarts_lose_nothing(machine: Machine) -> None:
    report = operate(machine, *[f"systemctl restart {WORKER}"] * 3)
    assert report.connection_troubles == []
    assert_each_done_once(machine, report)


def test_killed_workers_lose_nothing(machine: Machine) -> None:
    before = int(machine.prop(WORKER, "NRestarts"))
    kill = f"systemctl kill -s KILL {WORKER}; sleep 0.5; {until_active(WORKER)}"
    report = operate(machine, *[kill] * 2)
    assert int(machine.prop(WORKER, "NRestarts")) == before + 2
    assert report.connection_troubles == []
    assert_each_done_once(machine, report)


def test_a_killed_gateway_loses_no_accepted_job(machine: Machine) -> None:
    kill = f"systemctl kill -s KILL {GATEWAY}; sleep 0.5; {until_active(GATEWAY)}"
    report = operate(machine, kill)
    # Active requests are cut off, but systemd keeps the port.
    assert not [line for line in report.troubles if "refused" in line]
    assert_each_done_once(machine, report)


def test_a_redis_restart_loses_nothing(machine: Machine) -> None:
    report = operate(machine, f"systemctl restart {REDIS}")
    assert report.connection_troubles == []
    assert_each_done_once(machine, report)


def test_a_killed_redis_loses_nothing(machine: Machine) -> None:
    report = operate(machine, f"systemctl kill -s KILL {REDIS}; sleep 0.5; {until_active(REDIS)}")
    assert report.connection_troubles == []
    assert_each_done_once(machine, report)


def test_a_reboot_loses_nothing(machine: Machine) -> None:
    with load(machine) as report:
        time.sleep(PAUSE_S)
    machine.power_off()
    machine.boot()
    assert_each_done_once(machine, report)
    some_job = next(iter(report.jobs.values()))
    assert job(machine, some_job)["status"] == "done"
