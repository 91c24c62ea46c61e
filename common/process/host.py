"""Sensors of the host: memory, temperature, GPU, power mode; and limits on them.

All values come from files. A sandbox hides some of them, a laptop lacks others, a sensor may be
asleep: a value that cannot be read is None, and nothing here raises.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sluice.common.settings.base import CommonSettings

_MB = 1 << 20
_FULL = re.compile(rb"^full .*?\bavg10=([0-9]+(?:[.][0-9]+)?)", re.MULTILINE)
_AVAILABLE = re.compile(rb"^MemAvailable:\s+([0-9]+) kB", re.MULTILINE)
_MODE = re.compile(rb"\bpmode:([0-9]+)")
_MODE_NAME = re.compile(rb"<\s*POWER_MODEL\s+ID=([0-9]+)\s+NAME=([\w.-]+)")
#: Readings outside this range are ignored: the sensor is off, or uses another unit.
_COLDEST_C, _HOTTEST_C = -40.0, 150.0
#: Files with the GPU load of a Jetson, in thousandths; they depend on the JetPack and the chip.
_GPU_LOADS = (
    "sys/devices/platform/*gpu*/load",
    "sys/devices/platform/bus@0/*gpu*/load",
    "sys/devices/gpu.0/load",
    "sys/class/devfreq/*.g[apv]*/device/load",
)
#: Longest file that is read, in bytes; the expected ones have a few lines.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HostReadings:
    """One reading of all sensors; None if a value is not available."""

    #: Percent of the last ten seconds in which all tasks were stalled on memory (PSI).
    memory_pressure: float | None = None
    #: Memory available without swapping.
    available_bytes: int | None = None
    #: Temperature and name of the hottest sensor.
    temperature_c: float | None = None
    hottest: str | None = None
    #: GPU utilisation, from 0 to 1.
    gpu_load: float | None = None
    #: Power mode of a Jetson.
    power_mode: str | None = None

    @property
    def available_mb(self) -> int | None:
        return None if self.available_bytes is None else self.available_bytes // _MB


class Host:
    """The host, with its files under a root directory. The files are located once."""

    def __init__(self, root: Path | str = "/") -> None:
        self._root = Path(root)
        self._zones: list[tuple[str, Path]] = []
        self._gpu_loads: list[Path] = []
        self._find()

    def read(self) -> HostReadings:
        """Read all sensors; takes well below a millisecond."""
        if not self._zones:  # drivers may have been loaded later
            self._find()
        temperature_c, hottest = self._temperature()
        return HostReadings(
            self._memory_pressure(),
            self._available_bytes(),
            temperature_c,
            hottest,
            self._gpu_load(),
            self._power_mode(),
        )

    def _find(self) -> None:
        self._zones = []
        for zone in self._glob("sys/class/thermal/thermal_zone*"):
            name = (_read(zone / "type") or b"").decode(errors="replace").strip()
            self._zones.append((name or zone.name, zone / "temp"))
        for pattern in _GPU_LOADS:
            self._gpu_loads = self._glob(pattern)
            if self._gpu_loads:
                return

    def _glob(self, pattern: str) -> list[Path]:
        try:
            return sorted(self._root.glob(pattern))
        except OSError:
            return []

    def _memory_pressure(self) -> float | None:
        # The root cgroup has the same value, for sandboxes that hide most of /proc.
        for path in ("proc/pressure/memory", "sys/fs/cgroup/memory.pressure"):
            found = _FULL.search(_read(self._root / path) or b"")
            if found:
                return float(found[1])
        return None

    def _available_bytes(self) -> int | None:
        found = _AVAILABLE.search(_read(self._root / "proc/meminfo") or b"")
        return int(found[1]) * 1024 if found else None

    def _temperature(self) -> tuple[float | None, str | None]:
        found: list[tuple[float, str]] = []
        for name, path in self._zones:
            celsius = _number(_read(path), 1000)
            if celsius is not None and _COLDEST_C < celsius < _HOTTEST_C:
                found.append((celsius, name))
        return max(found, default=(None, None))

    def _gpu_load(self) -> float | None:
        loads = [_number(_read(path), 1000) for path in self._gpu_loads]
        return max((load for load in loads if load is not None and 0 <= load <= 1), default=None)

    def _power_mode(self) -> str | None:
        """The name of the mode, or its number if the table of names cannot be read."""
        found = _MODE.search(_read(self._root / "var/lib/nvpmodel/status") or b"")
        if found is None:
            return None
        number = int(found[1])
        for each, name in _MODE_NAME.findall(_read(self._root / "etc/nvpmodel.conf") or b""):
            if int(each) == number:
                return str(name.decode())
        return str(number)


def _read(path: Path) -> bytes | None:
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read(_MOST_BYTES)
    return None


def _number(raw: bytes | None, unit: int) -> float | None:
    try:
        return int(raw or b"") / unit
    except ValueError:
        return None


#: Seconds between two readings.
SAMPLE_INTERVAL_S = 2.0
#: Pressure is over once all readings were clearly within the limit for this many seconds.
CALM_S = 6.0
#: "Clearly within": factor of the pressure, factor of the available memory, degrees below.
CALM_PRESSURE, CALM_MEMORY, CALM_DEGREES = 0.8, 1.1, 5.0


class PressureBound(NamedTuple):
    """A limit on one reading: when it is crossed, when it is cleared, and its description."""

    #: The name of the setting.
    setting: str
    #: Whether the limit is crossed, and whether it stays so once it was; None without a reading.
    is_crossed: Callable[[HostReadings], bool | None]
    is_near: Callable[[HostReadings], bool | None]
    describe: Callable[[HostReadings], str]


def pressure_bounds(settings: CommonSettings) -> list[PressureBound]:
    """The limits that are set; none by default."""
    bounds = []
    if settings.max_memory_pressure > 0:
        bounds.append(_memory_pressure(settings.max_memory_pressure))
    if settings.min_available_mb > 0:
        bounds.append(_available(settings.min_available_mb))
    if settings.max_temperature_c > 0:
        bounds.append(_temperature(settings.max_temperature_c))
    return bounds


def _memory_pressure(most: float) -> PressureBound:
    def above(limit: float) -> Callable[[HostReadings], bool | None]:
        return lambda now: None if now.memory_pressure is None else now.memory_pressure >= limit

    return PressureBound(
        "MAX_MEMORY_PRESSURE",
        above(most),
        above(most * CALM_PRESSURE),
        lambda now: f"memory pressure is {now.memory_pressure:.1f} %, {most:g} % is the limit",
    )


def _available(least_mb: int) -> PressureBound:
    def below(limit: float) -> Callable[[HostReadings], bool | None]:
        return lambda now: None if now.available_mb is None else now.available_mb < limit

    return PressureBound(
        "MIN_AVAILABLE_MB",
        below(least_mb),
        below(least_mb * CALM_MEMORY),
        lambda now: f"{now.available_mb} MB of memory are available, {least_mb} MB is the minimum",
    )


def _temperature(most_c: float) -> PressureBound:
    def above(limit: float) -> Callable[[HostReadings], bool | None]:
        return lambda now: None if now.temperature_c is None else now.temperature_c >= limit

    return PressureBound(
        "MAX_TEMPERATURE_C",
        above(most_c),
        above(most_c - CALM_DEGREES),
        lambda now: f"{now.hottest} is at {now.temperature_c:.1f} °C, {most_c:g} °C is the limit",
    )


@dataclass
class _BoundState:
    bound: PressureBound
    #: When the reading came clearly within the limit; None while it is not.
    calm_since: float | None = None
    #: Why new work has to wait; empty if it does not.
    reason: str = ""


class PressureGauge:
    """Follows readings over time.

    A crossed limit counts as crossed until the readings were clearly within it for CALM_S seconds,
    so that work is not stopped and resumed with every fluctuation.
    """

    def __init__(self, bounds: list[PressureBound]) -> None:
        self._watched = [_BoundState(bound) for bound in bounds]
        #: Why no new work may start; empty if it may.
        self.reasons: tuple[str, ...] = ()

    def update(self, readings: HostReadings, now: float) -> bool:
        """Apply new readings; returns True if work has to wait from now on, or may resume."""
        before = bool(self.reasons)
        for watched in self._watched:
            _update(watched, readings, now)
        self.reasons = tuple(watched.reason for watched in self._watched if watched.reason)
        return before != bool(self.reasons)


def unmeasured_bounds(bounds: list[PressureBound], readings: HostReadings) -> str:
    """Settings whose reading is not available, comma-separated; a sandbox may hide it."""
    return ", ".join(bound.setting for bound in bounds if bound.is_crossed(readings) is None)


def _update(watched: _BoundState, readings: HostReadings, now: float) -> None:
    bound = watched.bound
    if bound.is_crossed(readings):
        watched.reason, watched.calm_since = bound.describe(readings), None
    elif not watched.reason:
        return
    elif bound.is_near(readings):
        watched.reason, watched.calm_since = bound.describe(readings), None
    elif watched.calm_since is None:  # a sensor without a reading counts as within the limit
        watched.calm_since = now
    elif now - watched.calm_since >= CALM_S:
        watched.reason, watched.calm_since = "", None


_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def is_loopback(host: str) -> bool:
    """True if a host can only be reached from this machine. Other names may resolve anywhere."""
    if host in _LOOPBACK_HOSTS:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
