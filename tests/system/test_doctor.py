"""`sluice doctor` on an installed machine: no problems, or problems with a remedy."""

from __future__ import annotations

import json
from typing import Any

from tests.system.machine import Machine
from tests.system.sluice import WORKER, run_job


def findings(machine: Machine, *, code: int) -> list[dict[str, Any]]:
    result = json.loads(machine.run("sluice doctor -o json", code=code).stdout)
    found: list[dict[str, Any]] = result["findings"]
    return found


def test_an_installed_machine_is_healthy(machine: Machine) -> None:
    run_job(machine)
    found = findings(machine, code=0)
    assert len(found) > 10
    assert [finding for finding in found if finding["status"] == "fail"] == []


def test_stopped_worker_is_found_with_its_remedy(machine: Machine) -> None:
    machine.run(f"systemctl stop {WORKER}")
    failed = [finding for finding in findings(machine, code=1) if finding["status"] == "fail"]
    assert WORKER.removesuffix(".service") in json.dumps(failed)
    assert "systemctl" in json.dumps(failed)
    machine.run(f"systemctl start {WORKER}")
