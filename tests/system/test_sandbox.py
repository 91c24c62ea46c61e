"""Scores of the units, and what a captured service could do: tried from within its sandbox."""

from __future__ import annotations

import json
import re

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, SERVICES, TOOLS, WORKER

HIGHEST_SCORE = 1.5
HIGHEST_SCORE_OF_THE_GATEWAY = 0.5

#: Resource limits cannot be enforced in a container; that they are set can be seen.
LIMITS = ("MemoryMax", "MemoryHigh", "TasksMax")

#: A service in the sandbox of another that does nothing but run the probe.
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
    told = machine.run(f"systemd-analyze security --no-pager {unit}").stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", told)
    assert found, told
    allowed = HIGHEST_SCORE_OF_THE_GATEWAY if unit == GATEWAY else HIGHEST_SCORE
    assert float(found[1]) <= allowed, told


def test_score_of_the_template(machine: Machine) -> None:
    told = machine.run("systemd-analyze security --no-pager redis-worker@any.service").stdout
    found = re.search(r"exposure level for \S+: ([\d.]+)", told)
    assert found, told
    assert float(found[1]) <= HIGHEST_SCORE, told


@pytest.mark.parametrize("unit", SERVICES)
def test_resources_are_limited(machine: Machine, unit: str) -> None:
    limits = machine.unit(unit, *LIMITS)
    assert limits.keys() == set(LIMITS)
    assert "infinity" not in limits.values(), limits


def test_redis_is_the_last_to_die_of_hunger(machine: Machine) -> None:
    scores = {unit: int(machine.prop(unit, "OOMScoreAdjust")) for unit in SERVICES}
    assert scores["redis.service"] < scores[GATEWAY] < scores[WORKER]


@pytest.mark.parametrize(("unit", "home"), [(GATEWAY, "redis-gateway"), (WORKER, "redis-worker")])
def test_captured_service_can_do_little(machine: Machine, unit: str, home: str) -> None:
    probing = f"probe-{unit}"
    machine.run(
        f"cp /etc/systemd/system/{unit} /etc/systemd/system/{probing} && "
        f"install -m 0644 {TOOLS}/probe.py /opt/{home}/probe.py"
    )
    machine.write(f"/etc/systemd/system/{probing}.d/probe.conf", PROBE.format(home=home))
    machine.run(f"systemctl daemon-reload && systemctl start {probing}")
    told = machine.run(f"journalctl -o cat -u {probing} _TRANSPORT=stdout | grep '^{{'").stdout
    outcomes: dict[str, str] = json.loads(told)
    allowed = [attempt for attempt, outcome in outcomes.items() if outcome == "allowed"]
    assert allowed == []
    # A refused connection would mean that there is a network, only nobody at the other end.
    assert outcomes["open an IPv4 connection"] in ("EAFNOSUPPORT", "EPERM", "ENETUNREACH")
