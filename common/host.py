"""How the box is: memory, temperature, GPU, power mode. Reads files, and knows what may be missing.

A sandbox hides some of them, a laptop lacks others, a sensor may be asleep: whatever cannot be
read is None, and nothing here ever raises.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

_MB = 1 << 20
_FULL = re.compile(rb"^full .*?\bavg10=([0-9]+(?:[.][0-9]+)?)", re.MULTILINE)
_AVAILABLE = re.compile(rb"^MemAvailable:\s+([0-9]+) kB", re.MULTILINE)
_MODE = re.compile(rb"\bpmode:([0-9]+)")
_MODE_NAME = re.compile(rb"<\s*POWER_MODEL\s+ID=([0-9]+)\s+NAME=([\w.-]+)")
#: What no sensor on a working board reports: one that is off, or counts in another unit.
_COLDEST_C, _HOTTEST_C = -40.0, 150.0
#: Where a Jetson tells its GPU's load, in thousandths: it depends on the JetPack and on the chip.
_GPU_LOADS = (
    "sys/devices/platform/*gpu*/load",
    "sys/devices/platform/bus@0/*gpu*/load",
    "sys/devices/gpu.0/load",
    "sys/class/devfreq/*.g[apv]*/device/load",
)
#: Longest file that is read; ours have a few lines.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at the box; None for what it does not tell."""

    #: Percent of the last ten seconds in which every task stood still for want of memory.
    memory_pressure: float | None = None
    #: Memory that can still be had without swapping.
    available_bytes: int | None = None
    #: The hottest sensor, and its name.
    temperature_c: float | None = None
    hottest: str | None = None
    #: How busy the GPU is, from 0 to 1.
    gpu_load: float | None = None
    #: The Jetson's power mode.
    power_mode: str | None = None

    @property
    def available_mb(self) -> int | None:
        """The same in megabytes."""
        return None if self.available_bytes is None else self.available_bytes // _MB


class Host:
    """The box under a root directory. Which files it has is found out once."""

    def __init__(self, root: Path | str = "/") -> None:
        self._root = Path(root)
        self._zones: list[tuple[str, Path]] = []
        self._gpu_loads: list[Path] = []
        self._find()

    def read(self) -> Readings:
        """Look at everything now; takes well below a millisecond."""
        if not self._zones:  # drivers may come later than we did
            self._find()
        temperature_c, hottest = self._temperature()
        return Readings(
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
        # The root of the cgroup tree tells the same where a sandbox hides all of /proc but us.
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
        """The mode's name, or its number where the table of names cannot be read."""
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
