"""Operations on the services while customers post jobs: nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

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
def healthy_before_and_after(machine: Machine) -> Iterator[None]:
    machine.run(f"systemctl start {' '.join(SERVICES)}")
    yield
    machine.run(f"systemctl is-active {' '.join(SERVICES)}")


def restart(unit: str) -> str:
    return f"systemctl restart {unit}"


def kill(unit: str) -> str:
    """Kills a unit and waits until systemd has started it again."""
    until_active = f"until systemctl is-active -q {unit}; do sleep 0.1; done"
    return f"systemctl kill -s KILL {unit}; sleep 0.5; {until_active}"


def all_troubles(report: Report) -> list[str]:
    return report.troubles


def connection_troubles(report: Report) -> list[str]:
    return report.connection_troubles


def refused_connections(report: Report) -> list[str]:
    return [line for line in report.troubles if "refused" in line]


@pytest.mark.parametrize(
    ("operations", "forbidden"),
    [
        ([restart(GATEWAY)] * 4, all_troubles),
        # Requests wait for the gateway.
        ([f"systemctl stop {GATEWAY} && sleep 1 && systemctl start {GATEWAY}"], all_troubles),
        # Active requests are cut off, but systemd keeps the port.
        ([kill(GATEWAY)], refused_connections),
        ([restart(WORKER)] * 3, connection_troubles),
        ([kill(WORKER)] * 2, connection_troubles),
        ([restart(REDIS)], connection_troubles),
        ([kill(REDIS)], connection_troubles),
    ],
    ids=[
        *("gateway restarts", "gateway stops for a second", "gateway killed"),
        *("worker restarts", "worker killed", "redis restarts", "redis killed"),
    ],
)
def test_no_accepted_job_is_lost(
    machine: Machine, operations: list[str], forbidden: Callable[[Report], list[str]]
) -> None:
    before = int(machine.prop(WORKER, "NRestarts"))
    with load(machine) as report:
        time.sleep(PAUSE_S)
        for operation in operations:
            machine.run(operation)
            time.sleep(PAUSE_S)
    assert forbidden(report) == []
    assert_each_done_once(machine, report)
    if kill(WORKER) in operations:
        assert int(machine.prop(WORKER, "NRestarts")) == before + len(operations)


def test_a_reboot_loses_nothing(machine: Machine) -> None:
    with load(machine) as report:
        time.sleep(PAUSE_S)
    machine.power_off()
    machine.boot()
    assert_each_done_once(machine, report)
    some_job = next(iter(report.jobs.values()))
    assert job(machine, some_job)["status"] == "done"
