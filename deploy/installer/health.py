"""Does it work? Units, the gateway's readiness, and a job that comes to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from common.contracts.jobs import JobKeys
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
from deploy.installer.resp import Resp
from deploy.installer.say import Say
from deploy.installer.units import Systemd

TRY_AGAIN_S = 0.5
#: A unit that crashes at once looks well for a moment; it must look well twice, this far apart.
SETTLE_S = 2.0
_FIX = f"See journalctl -u {GATEWAY_UNIT} -u {ECHO_UNIT} -u {REDIS_UNIT} -n 50"


class Health(Protocol):
    """Tells whether an installation works."""

    def check(self, timeout_s: float) -> None:
        """Wait until it does; raises Unhealthy."""


@dataclass(frozen=True)
class RealHealth:
    """Of the box we run on."""

    layout: Layout
    systemd: Systemd
    say: Say
    listen: str
    keys: JobKeys
    credentials: Credentials

    def check(self, timeout_s: float) -> None:
        """Try until all is well, or the time is up."""
        self.say.step(f"check that it works (up to {timeout_s:.0f} s)")
        deadline = time.monotonic() + timeout_s
        with self.say.patience("waiting for units, /readyz and a probe job"):
            while True:
                try:
                    self._once()
                    time.sleep(SETTLE_S)
                    self._units()
                    return
                except InstallError as error:
                    if time.monotonic() > deadline:
                        raise Unhealthy(error.what, error.fix or _FIX) from error
                time.sleep(TRY_AGAIN_S)

    def _once(self) -> None:
        self._units()
        gateway = probe.Gateway(self.listen)
        gateway.ready()
        if not self._workers():
            self.say.hint("no worker runs, so no probe job was sent")
            return
        password = self.credentials.passwords[ADMIN]
        with Resp(self.layout.socket, ADMIN, password) as admin:
            probe.run_job(gateway, admin, self.keys)

    def _workers(self) -> list[str]:
        echo = [ECHO_UNIT] if self.systemd.is_active(ECHO_UNIT) else []
        return echo + self.systemd.workers()

    def _units(self) -> None:
        wanted = [REDIS_UNIT, SOCKET_UNIT, GATEWAY_UNIT]
        optional = (ECHO_UNIT, MODEL_UNIT, AI_UNIT)
        wanted += [unit for unit in optional if self.systemd.is_enabled(unit)]
        for unit in wanted:
            state = self.systemd.state_of(unit)
            if state != "active":
                raise Unhealthy(f"unit {unit} is {state}", f"See journalctl -u {unit} -n 50")
