"""A machine whose sensors read what a test decides."""

from __future__ import annotations

from dataclasses import replace

from common.process.host import Host, HostReadings

CALM = HostReadings(0.0, 4 << 30, 45.0, "gpu-thermal", 0.5, "15W")
HOT = replace(CALM, temperature_c=85.0)


class Box(Host):
    """Calm until told otherwise."""

    def __init__(self) -> None:
        self.readings = CALM

    def read(self) -> HostReadings:
        return self.readings
