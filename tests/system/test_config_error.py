"""An invalid setting stops a service permanently and is named in its log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, URL, WORKER, assert_failed_permanently, curl, run_job

CASES = [
    (WORKER, "/etc/sluice/worker.env", "BLOCK_MS"),
    (GATEWAY, "/etc/sluice/gateway.env", "JOB_TTL_S"),
]


@pytest.fixture(params=CASES, ids=[unit for unit, _, _ in CASES])
def broken(request: pytest.FixtureRequest, machine: Machine) -> Iterator[tuple[str, str]]:
    """A service restarted with an invalid setting; the setting is removed afterwards."""
    unit, path, variable = request.param
    good = machine.read(path)
    machine.write(path, f"{good}\n{variable}=banana\n")
    machine.run(f"systemctl reset-failed {unit}; systemctl restart {unit}", code=None)
    yield unit, variable
    machine.write(path, good)
    machine.run(f"systemctl restart {unit}")
    run_job(machine)
    assert "ok" in curl(machine, f"{URL}/healthz")


def test_bad_setting_fails_the_unit_once_and_is_named(
    machine: Machine, broken: tuple[str, str]
) -> None:
    unit, variable = broken
    # A service that restarts repeatedly would be "activating" or "auto-restart" at some time.
    for _ in range(10):
        assert_failed_permanently(machine, unit, variable)
        machine.run("sleep 0.3")
    assert "Traceback" not in machine.journal("-b", f"-u{unit}")
