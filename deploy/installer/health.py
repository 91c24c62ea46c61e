"""The health check: active units, a ready gateway and a probe job that finishes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from deploy.installer import probe
from deploy.installer.credentials import Credentials
from deploy.installer.errors import InstallError, Unhealthy
from deploy.installer.layout import (
    ADMIN,
    AI_UNIT,
    ECHO_UNIT,
    GATEWAY_UNIT,
    MODEL_UNIT,
    REDIS_UNIT,
    SOCKET_UNIT,
    Layout,
)
from deploy.installer.output import Output
from deploy.installer.resp import Resp
from deploy.installer.units import Systemd
from sluice.common.contracts.jobs import JobKeys

RETRY_EVERY_S = 0.5
#: A unit that crashes at start is active for a moment. It must be active twice, this far apart.
SETTLE_S = 2.0
_FIX = f"See journalctl -u {GATEWAY_UNIT} -u {ECHO_UNIT} -u {REDIS_UNIT} -n 50"


class Health(Protocol):
    """Checks whether an installation works."""

    def check(self, timeout_s: float) -> None:
        """Waits until the installation works; raises Unhealthy after `timeout_s`."""


@dataclass(frozen=True)
class RealHealth:
    """Health check of the live host."""

    layout: Layout
    systemd: Systemd
    output: Output
    listen: str
    keys: JobKeys
    credentials: Credentials

    def check(self, timeout_s: float) -> None:
        self.output.step(f"check health (up to {timeout_s:.0f} s)")
        deadline = time.monotonic() + timeout_s
        with self.output.reminders("waiting for units, /readyz and a probe job"):
            while True:
                try:
                    self._check_once()
                    time.sleep(SETTLE_S)
                    self._check_units()
                    return
                except InstallError as error:
                    if time.monotonic() > deadline:
                        raise Unhealthy(error.what, error.fix or _FIX) from error
                time.sleep(RETRY_EVERY_S)

    def _check_once(self) -> None:
        self._check_units()
        gateway = probe.Gateway(self.listen)
        gateway.ready()
        if not self._workers():
            self.output.hint("no worker is running, so no probe job was sent")
            return
        password = self.credentials.passwords[ADMIN]
        with Resp(self.layout.socket, ADMIN, password) as admin:
            probe.run_job(gateway, admin, self.keys)

    def _workers(self) -> list[str]:
        echo = [ECHO_UNIT] if self.systemd.is_active(ECHO_UNIT) else []
        return echo + self.systemd.workers()

    def _check_units(self) -> None:
        expected = [REDIS_UNIT, SOCKET_UNIT, GATEWAY_UNIT]
        optional = (ECHO_UNIT, MODEL_UNIT, AI_UNIT)
        expected += [unit for unit in optional if self.systemd.is_enabled(unit)]
        for unit in expected:
            state = self.systemd.state_of(unit)
            if state != "active":
                raise Unhealthy(f"unit {unit} is {state}", f"See journalctl -u {unit} -n 50")
