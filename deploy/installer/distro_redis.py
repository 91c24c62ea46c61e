"""The distribution's Redis: Debian's redis-server.service has the alias redis.service."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer.errors import Unsuitable
from deploy.installer.host import Host
from deploy.installer.layout import REDIS_UNIT
from deploy.installer.steps import Step

UNIT = "redis-server.service"
_FIX = f"Check `systemctl status {UNIT}`, then run the command again."


@dataclass(frozen=True)
class DistroRedis:
    """State of the distribution's Redis unit."""

    enabled: bool
    active: bool
    #: True if /etc/systemd/system/redis.service is its alias.
    alias: bool

    @property
    def conflicts(self) -> bool:
        return self.enabled or self.active or self.alias


def detect(host: Host) -> DistroRedis:
    """Queries systemd; below `--root`, checks the links instead."""
    units = host.layout.units
    unit_file = units / REDIS_UNIT
    alias = unit_file.is_symlink() and Path(os.readlink(unit_file)).name == UNIT
    if host.is_live:
        enabled = host.query(["systemctl", "is-enabled", UNIT]) == "enabled"
        active = host.query(["systemctl", "is-active", UNIT]) == "active"
    else:
        enabled = alias or any(path.is_symlink() for path in _wants_links(units))
        active = False
    return DistroRedis(enabled, active, alias)


def check_redis_unit(host: Host, installed: bool) -> None:
    """Raises Unsuitable if redis.service was created by neither Sluice nor Debian."""
    unit_file = host.layout.units / REDIS_UNIT
    if unit_file.is_symlink() and Path(os.readlink(unit_file)).name != UNIT:
        conflict = f"{unit_file} points to {os.readlink(unit_file)}"
    elif unit_file.is_file() and not unit_file.is_symlink() and not installed:
        conflict = f"{unit_file} already exists and was not installed by Sluice"
    else:
        return
    raise Unsuitable(
        conflict,
        "Sluice installs a unit of this name. Stop and disable the existing one (systemctl "
        f"disable --now {REDIS_UNIT}), move the file away, and run the command again.",
    )


@dataclass
class DisableDistroRedis(Step):
    """Stops and disables the distribution's Redis; its data and settings are not changed."""

    host: Host
    found: DistroRedis
    _done: bool = field(default=False, init=False)

    def pending(self) -> str | None:
        if self._done or not self.found.conflicts:
            return None
        return (
            f"stop and disable {UNIT}, because Sluice uses its alias {REDIS_UNIT} (its data is not "
            "changed; `uninstall` enables it again)"
        )

    def apply(self) -> None:
        """Stops the service before the links are removed, so that it no longer writes."""
        if self.host.is_live:
            self.host.run(["systemctl", "disable", "--now", UNIT], _FIX)
        units = self.host.layout.units
        for link in (units / REDIS_UNIT, *_wants_links(units)):
            if link.is_symlink():
                link.unlink()
        self._done = True

    def undo(self) -> None:
        restore(self.host, self.found.enabled or self.found.alias, self.found.active)


@dataclass
class EnableDistroRedis(Step):
    """Enables and starts the distribution's Redis again, as before the installation."""

    host: Host
    enabled: bool
    active: bool

    def pending(self) -> str | None:
        if not (self.enabled or self.active) or detect(self.host).enabled:
            return None
        return f"enable {UNIT} again" + (", and start it" if self.active else "")

    def apply(self) -> None:
        restore(self.host, self.enabled, self.active)


def restore(host: Host, enabled: bool, active: bool) -> None:
    """Enables and starts the unit, as it was before the installation."""
    if not host.is_live:
        units = host.layout.units
        for link in (units / REDIS_UNIT, *_wants_links(units)):
            if enabled and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(f"/lib/systemd/system/{UNIT}")
        return
    if not host.query(["systemctl", "list-unit-files", "--no-legend", UNIT]):
        return  # the package has been removed
    host.run(["systemctl", "daemon-reload"], _FIX)
    if enabled:
        host.run(["systemctl", "enable", UNIT], _FIX)
    if active:
        host.run(["systemctl", "start", UNIT], _FIX)


def _wants_links(units: Path) -> tuple[Path, ...]:
    return (units / "multi-user.target.wants" / UNIT,)
