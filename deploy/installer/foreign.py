"""Somebody else's Redis: Debian's redis-server.service calls itself redis.service too."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from deploy.installer.errors import Unsuitable
from deploy.installer.host import Host
from deploy.installer.layout import REDIS_UNIT
from deploy.installer.steps import Step

UNIT = "redis-server.service"
_FIX = f"Look at `systemctl status {UNIT}`, then run this again."


@dataclass(frozen=True)
class ForeignRedis:
    """How it stands."""

    enabled: bool
    active: bool
    #: Where its name stands in our way.
    alias: bool

    @property
    def in_the_way(self) -> bool:
        """Whether anything is to be done about it."""
        return self.enabled or self.active or self.alias


def look(host: Host) -> ForeignRedis:
    """Ask systemd, or below a `--root` its links."""
    units = host.layout.units
    ours = units / REDIS_UNIT
    alias = ours.is_symlink() and Path(os.readlink(ours)).name == UNIT
    if host.is_live:
        enabled = host.answer(["systemctl", "is-enabled", UNIT]) == "enabled"
        active = host.answer(["systemctl", "is-active", UNIT]) == "active"
    else:
        enabled = alias or any(path.is_symlink() for path in _wanted(units))
        active = False
    return ForeignRedis(enabled, active, alias)


def refuse_strangers(host: Host, installed: bool) -> None:
    """A redis.service that neither we nor Debian made is not ours to replace."""
    ours = host.layout.units / REDIS_UNIT
    if ours.is_symlink() and Path(os.readlink(ours)).name != UNIT:
        stranger = f"{ours} points to {os.readlink(ours)}"
    elif ours.is_file() and not ours.is_symlink() and not installed:
        stranger = f"{ours} is there already, and not from us"
    else:
        return
    raise Unsuitable(
        stranger,
        f"Sluice brings a unit of this name. Stop and disable that one (systemctl disable --now "
        f"{REDIS_UNIT}), move the file away, and run this again.",
    )


@dataclass
class StandAside(Step):
    """Stop and disable it; its data and settings stay as they are."""

    host: Host
    found: ForeignRedis
    _done: bool = field(default=False, init=False)

    def pending(self) -> str | None:
        """It is in the way, and was not sent aside yet."""
        if self._done or not self.found.in_the_way:
            return None
        return (
            f"stop and disable {UNIT}, whose alias {REDIS_UNIT} is ours now (its data is not "
            "touched; `uninstall` puts it back)"
        )

    def apply(self) -> None:
        """Stop it first, so that nothing writes meanwhile."""
        if self.host.is_live:
            self.host.run(["systemctl", "disable", "--now", UNIT], _FIX)
        units = self.host.layout.units
        for link in (units / REDIS_UNIT, *_wanted(units)):
            if link.is_symlink():
                link.unlink()
        self._done = True

    def undo(self) -> None:
        """Let it in again."""
        put_back(self.host, self.found.enabled or self.found.alias, self.found.active)


@dataclass
class ComeBack(Step):
    """Put it back as it was before we came."""

    host: Host
    enabled: bool
    active: bool

    def pending(self) -> str | None:
        """It was there before us, and still could be."""
        if not (self.enabled or self.active) or look(self.host).enabled:
            return None
        return f"enable {UNIT} again" + (", and start it" if self.active else "")

    def apply(self) -> None:
        """Enable it, and start it if it ran."""
        put_back(self.host, self.enabled, self.active)


def put_back(host: Host, enabled: bool, active: bool) -> None:
    """Enable and start what was."""
    if not host.is_live:
        units = host.layout.units
        for link in (units / REDIS_UNIT, *_wanted(units)):
            if enabled and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(f"/lib/systemd/system/{UNIT}")
        return
    if not host.answer(["systemctl", "list-unit-files", "--no-legend", UNIT]):
        return  # its package is gone
    host.run(["systemctl", "daemon-reload"], _FIX)
    if enabled:
        host.run(["systemctl", "enable", UNIT], _FIX)
    if active:
        host.run(["systemctl", "start", UNIT], _FIX)


def _wanted(units: Path) -> tuple[Path, ...]:
    return (units / "multi-user.target.wants" / UNIT,)
