"""Readings of a Jetson and a laptop, and pressure limits."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.common.process.host import (
    CALM_S,
    Host,
    HostReadings,
    PressureGauge,
    pressure_bounds,
    unmeasured_bounds,
)
from sluice.common.settings.base import CommonSettings

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


# -- Pressure limits: when work has to wait and when it may resume, with reasons ------------------


CALM = HostReadings(0.0, 4 << 30, 40.0, "gpu-thermal")
BOUNDS: dict[str, Any] = {
    "max_memory_pressure": 10.0,
    "min_available_mb": 1000,
    "max_temperature_c": 80.0,
}
MB = 1 << 20
#: The reading; values that cross, stay near and clear the limit; and the first reason.
CASES = [
    ("memory_pressure", 10.0, 8.0, 7.9, "memory pressure is 10.0 %, 10 % is the limit"),
    ("available_bytes", 999 * MB, 1099 * MB, 1100 * MB,
     "999 MB of memory are available, 1000 MB is the minimum"),
    ("temperature_c", 80.0, 75.0, 74.9, "gpu-thermal is at 80.0 °C, 80 °C is the limit"),
]  # fmt: skip


def gauge(**bounds: Any) -> PressureGauge:
    return PressureGauge(pressure_bounds(CommonSettings(**(bounds or BOUNDS))))


def test_without_limits_nothing_has_to_wait() -> None:
    assert pressure_bounds(CommonSettings()) == []
    none = PressureGauge([])
    assert not none.update(HostReadings(100.0, 0, 149.0, "x"), 0.0)
    assert none.reasons == ()


@pytest.mark.parametrize(("name", "much", "tense", "calm", "reason"), CASES)
def test_work_waits_until_readings_were_calm_for_a_while(
    name: str, much: float, tense: float, calm: float, reason: str
) -> None:
    watched = gauge()
    assert not watched.update(replace(CALM, **{name: tense}), 0.0), "it is not crossed yet"
    assert watched.update(replace(CALM, **{name: much}), 1.0)
    assert watched.reasons == (reason,)
    assert not watched.update(replace(CALM, **{name: tense}), 100.0)
    assert watched.reasons
    assert not watched.update(replace(CALM, **{name: calm}), 101.0)
    assert not watched.update(replace(CALM, **{name: calm}), 101.0 + CALM_S - 0.1)
    assert watched.reasons
    assert watched.update(replace(CALM, **{name: calm}), 101.0 + CALM_S)
    assert watched.reasons == ()


def test_a_short_calm_is_not_enough() -> None:
    watched = gauge()
    watched.update(replace(CALM, temperature_c=90.0), 0.0)
    watched.update(CALM, 1.0)
    watched.update(replace(CALM, temperature_c=76.0), 2.0)
    watched.update(CALM, 3.0)
    assert not watched.update(CALM, 2.9 + CALM_S)
    assert watched.update(CALM, 3.0 + CALM_S)


def test_all_reasons_are_named_and_each_must_clear() -> None:
    watched = gauge()
    hot_and_full = replace(CALM, temperature_c=90.0, available_bytes=0)
    assert watched.update(hot_and_full, 0.0)
    assert len(watched.reasons) == 2
    hot = replace(CALM, temperature_c=91.0)
    assert not watched.update(hot, 1.0)
    assert not watched.update(hot, 1.0 + CALM_S)
    assert watched.reasons == ("gpu-thermal is at 91.0 °C, 80 °C is the limit",)


def test_a_missing_sensor_is_no_reason_and_does_not_block() -> None:
    watched = gauge()
    watched.update(replace(CALM, temperature_c=90.0), 0.0)
    assert not watched.update(HostReadings(), 1.0)
    assert watched.update(HostReadings(), 1.0 + CALM_S)
    assert not gauge().update(HostReadings(), 0.0)


def test_limits_without_a_sensor_are_named() -> None:
    bounds = pressure_bounds(CommonSettings(**BOUNDS))
    assert unmeasured_bounds(bounds, CALM) == ""
    assert unmeasured_bounds(bounds, replace(CALM, available_bytes=None)) == "MIN_AVAILABLE_MB"
    assert unmeasured_bounds(bounds, HostReadings()) == (
        "MAX_MEMORY_PRESSURE, MIN_AVAILABLE_MB, MAX_TEMPERATURE_C"
    )
