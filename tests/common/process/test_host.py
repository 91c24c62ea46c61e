"""Readings of a Jetson and a laptop; missing and invalid values are None."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from common.process.host import Host, HostReadings

PSI = (
    "some avg10=3.10 avg60=1.00 avg300=0.20 total=12345\n"
    "full avg10=1.25 avg60=0.50 avg300=0.10 total=2345\n"
)
MEMINFO = "MemTotal:        7802348 kB\nMemFree:          200000 kB\nMemAvailable:    1048576 kB\n"
NVPMODEL = """\
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=1 NAME=7W >
CPU_ONLINE CORE_0 1
< PM_CONFIG DEFAULT=0 >
"""


def tree(root: Path, files: dict[str, str]) -> Host:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root)


def zone(number: int, name: str, milli: str) -> dict[str, str]:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{name}\n", f"{folder}/temp": milli}


JETSON = {
    "proc/pressure/memory": PSI,
    "proc/meminfo": MEMINFO,
    **zone(0, "cpu-thermal", "48968\n"),
    **zone(1, "gpu-thermal", "51250\n"),
    **zone(2, "cv0-thermal", "\n"),  # its block is switched off
    **zone(3, "soc2-thermal", "-256000\n"),  # the sensor is missing
    **zone(10, "tj-thermal", "50500\n"),
    "sys/devices/platform/bus@0/17000000.gpu/load": "437\n",
    "var/lib/nvpmodel/status": "pmode:0001 fmode:quiet\n",
    "etc/nvpmodel.conf": NVPMODEL,
}


def test_a_jetson(tmp_path: Path) -> None:
    assert tree(tmp_path, JETSON).read() == HostReadings(
        memory_pressure=1.25,
        available_bytes=1 << 30,
        temperature_c=51.25,
        hottest="gpu-thermal",
        gpu_load=0.437,
        power_mode="7W",
    )


def test_a_laptop(tmp_path: Path) -> None:
    laptop = {
        "proc/pressure/memory": PSI,
        "proc/meminfo": MEMINFO,
        **zone(0, "x86_pkg_temp", "61000"),
    }
    readings = tree(tmp_path, laptop).read()
    assert (readings.temperature_c, readings.hottest) == (61.0, "x86_pkg_temp")
    assert readings.available_mb == 1024
    assert (readings.gpu_load, readings.power_mode) == (None, None)
    # An unnamed power mode is a number.
    host = tree(tmp_path, {"var/lib/nvpmodel/status": "pmode:0002"})
    assert host.read().power_mode == "2"


def test_a_host_without_any_sensor(tmp_path: Path) -> None:
    assert Host(tmp_path).read() == HostReadings()
    assert Host(tmp_path / "nowhere").read() == HostReadings()
    # Without proc the pressure is read from cgroups.
    host = tree(tmp_path, {"sys/fs/cgroup/memory.pressure": PSI})
    assert host.read() == HostReadings(memory_pressure=1.25)


@pytest.mark.parametrize(
    "path",
    [
        "sys/devices/platform/gpu.0/load",
        "sys/devices/platform/17000000.gpu/load",
        "sys/devices/gpu.0/load",
        "sys/class/devfreq/17000000.ga10b/device/load",
    ],
)
def test_the_gpu_is_found_for_every_jetpack(tmp_path: Path, path: str) -> None:
    assert tree(tmp_path, {path: "1000"}).read().gpu_load == 1.0


def test_invalid_values_are_not_readings(tmp_path: Path) -> None:
    host = tree(
        tmp_path,
        {
            "proc/pressure/memory": "full avg10=much\n",
            "proc/meminfo": "\x00" * 100,
            **zone(0, "\x01", "hot"),
            **zone(1, "x", "999999999"),
            "sys/devices/gpu.0/load": "4000",
            "var/lib/nvpmodel/status": "",
        },
    )
    assert host.read() == HostReadings()


def test_sensors_may_vanish_or_appear_later(tmp_path: Path) -> None:
    host = tree(tmp_path, JETSON)
    os.remove(tmp_path / "sys/class/thermal/thermal_zone1/temp")
    (tmp_path / "proc/meminfo").unlink()
    (tmp_path / "proc/meminfo").mkdir()
    readings = host.read()
    assert (readings.hottest, readings.available_bytes) == ("tj-thermal", None)
    host = Host(tmp_path / "later")
    tree(tmp_path / "later", JETSON)
    assert host.read().hottest == "gpu-thermal"


def test_this_host_is_read_quickly() -> None:
    host = Host()
    best = min(_seconds(host) for _ in range(20))
    assert best < 0.02  # a fraction of a millisecond on an idle machine


def _seconds(host: Host) -> float:
    started = time.perf_counter()
    host.read()
    return time.perf_counter() - started
