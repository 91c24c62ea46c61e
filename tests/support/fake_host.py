"""A host with sensor readings that a test sets."""

from __future__ import annotations

from dataclasses import replace

from sluice.common.process.host import Host, HostReadings

NORMAL = HostReadings(0.0, 4 << 30, 45.0, "gpu-thermal", 0.5, "15W")
HOT = replace(NORMAL, temperature_c=85.0)


class FakeHost(Host):
    """Normal readings until a test changes them."""

    def __init__(self) -> None:
        self.readings = NORMAL

    def read(self) -> HostReadings:
        return self.readings
