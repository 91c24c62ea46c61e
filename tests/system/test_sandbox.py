"""Security scores of the units, and what a compromised service can do from within its sandbox."""

from __future__ import annotations

import json
import re

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, SERVICES, TOOLS, WORKER

MAX_SCORE = 1.5
MAX_SCORE_OF_THE_GATEWAY = 0.5

#: Resource limits cannot be enforced in a container; only their values are checked.
LIMITS = ("MemoryMax", "MemoryHigh", "TasksMax")

#: A service with the sandbox of another one that only runs the probe.
PROBE = """
[Unit]
Requires=
[Service]
Type=oneshot
ExecStartPre=
ExecStart=
ExecStart=/opt/{home}/venv/bin/python /opt/{home}/probe.py
ExecStartPost=
ExecStopPost=
Restart=no
WatchdogSec=0
StandardOutput=journal
StandardError=journal
"""


@pytest.mark.parametrize("unit", SERVICES)
def test_score(machine: Machine, unit: str) -> None:
    output = machine.run(f"systemd-analyze security --no-pager {unit}").stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", output)
    assert found, output
    allowed = MAX_SCORE_OF_THE_GATEWAY if unit == GATEWAY else MAX_SCORE
    assert float(found[1]) <= allowed, output


def test_score_of_the_template(machine: Machine) -> None:
    output = machine.run("systemd-analyze security --no-pager redis-worker@any.service").stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", output)
    assert found, output
    assert float(found[1]) <= MAX_SCORE, output


@pytest.mark.parametrize("unit", SERVICES)
def test_resources_are_limited(machine: Machine, unit: str) -> None:
    limits = machine.unit(unit, *LIMITS)
    assert limits.keys() == set(LIMITS)
    assert "infinity" not in limits.values(), limits


def test_redis_is_killed_last_by_the_oom_killer(machine: Machine) -> None:
    scores = {unit: int(machine.prop(unit, "OOMScoreAdjust")) for unit in SERVICES}
    assert scores["redis.service"] < scores[GATEWAY] < scores[WORKER]


@pytest.mark.parametrize(("unit", "home"), [(GATEWAY, "redis-gateway"), (WORKER, "redis-worker")])
def test_a_compromised_service_can_do_little(machine: Machine, unit: str, home: str) -> None:
    probing = f"probe-{unit}"
    machine.run(
        f"cp /etc/systemd/system/{unit} /etc/systemd/system/{probing} && "
        f"install -m 0644 {TOOLS}/probe.py /opt/{home}/probe.py"
    )
    machine.write(f"/etc/systemd/system/{probing}.d/probe.conf", PROBE.format(home=home))
    machine.run(f"systemctl daemon-reload && systemctl start {probing}")
    output = machine.run(f"journalctl -o cat -u {probing} _TRANSPORT=stdout | grep '^{{'").stdout
    outcomes: dict[str, str] = json.loads(output)
    allowed = [attempt for attempt, outcome in outcomes.items() if outcome == "allowed"]
    assert allowed == []
    # ECONNREFUSED would mean that there is a network.
    assert outcomes["open an IPv4 connection"] in ("EAFNOSUPPORT", "EPERM", "ENETUNREACH")
