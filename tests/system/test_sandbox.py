"""What a compromised service can do from within its sandbox."""

from __future__ import annotations

import json

import pytest

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, TOOLS, WORKER

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
