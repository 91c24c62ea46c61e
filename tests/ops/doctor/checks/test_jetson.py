"""Checks of a Jetson on a fake machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.ops.doctor.checks import jetson
from sluice.ops.doctor.finding import Check, Health
from tests.ops.doctor.machines import expect, expect_skipped, finding_of, make_machine, write

MODEL = "NVIDIA Jetson Orin Nano Developer Kit\0"
RELEASE_FILE = "/etc/nv_tegra_release"
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"
TEMPERATURE = "/sys/class/thermal/thermal_zone0/temp"
FAN = "/sys/class/hwmon/hwmon0/pwm1"
THROTTLE, COOLING_FAN = (f"/sys/class/thermal/cooling_device{number}" for number in (0, 1))
#: A Jetson without problems.
ORIN = {
    "/proc/device-tree/model": MODEL,
    RELEASE_FILE: RELEASE,
    "/var/lib/nvpmodel/status": "pmode:0001 fmode:quiet\n",
    "/etc/nvpmodel.conf": "< POWER_MODEL ID=1 NAME=25W >\n",
    "/sys/devices/platform/gpu.0/load": "421\n",
    FAN: "0\n",
    "/sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    TEMPERATURE: "48500\n",
    f"{THROTTLE}/type": "cpufreq-cpu0\n",
    f"{THROTTLE}/cur_state": "0\n",
    f"{COOLING_FAN}/type": "pwm-fan\n",
    f"{COOLING_FAN}/cur_state": "3\n",  # a fan does not throttle
}


def write_all(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        write(root, name, text)


@pytest.mark.parametrize("check", jetson.CHECKS, ids=lambda check: check.name)
def test_other_machines_are_skipped(tmp_path: Path, check: Check) -> None:
    other = {"/proc/device-tree/model": "Raspberry Pi 5\0", TEMPERATURE: "120000\n"}
    write_all(tmp_path, {**ORIN, **other})
    (tmp_path / RELEASE_FILE.lstrip("/")).unlink()
    expect_skipped(check, make_machine(tmp_path), "not a Jetson")


def test_healthy_jetson(tmp_path: Path) -> None:
    write_all(tmp_path, ORIN)
    found = {check.name: finding_of(check, make_machine(tmp_path)) for check in jetson.CHECKS}
    assert {finding.status for finding in found.values()} == {Health.OK}
    assert found["jetson.release"].seen == (
        "NVIDIA Jetson Orin Nano Developer Kit, L4T 36.4.3 (JetPack 6)"
    )
    assert found["jetson.temperature"].seen == "48.5 °C at cpu-thermal"
    assert found["jetson.power_mode"].seen == "25W"
    assert found["jetson.gpu"].seen == "42% busy"


@pytest.mark.parametrize(
    ("check", "files", "status", "seen"),
    [
        (jetson.release, {RELEASE_FILE: RELEASE.replace("6", "5", 1)}, Health.WARN, "JetPack 5"),
        (jetson.release, {RELEASE_FILE: "nonsense"}, Health.NOTE, ""),
        (jetson.temperature, {TEMPERATURE: "84000\n"}, Health.OK, ""),
        (jetson.temperature, {TEMPERATURE: "88000\n"}, Health.WARN, ""),
        (jetson.temperature, {TEMPERATURE: "97000\n"}, Health.FAIL, ""),
        (jetson.throttling, {f"{THROTTLE}/cur_state": "2\n"}, Health.WARN, "cpufreq-cpu0"),
        (
            jetson.throttling,
            {"/sys/class/hwmon/hwmon1/oc1_event_cnt": "3\n"},
            Health.WARN,
            "3 over-current events",
        ),
        (jetson.fan, {TEMPERATURE: "76000\n"}, Health.WARN, ""),
        (
            jetson.fan,
            {TEMPERATURE: "76000\n", FAN: "128\n", "/sys/class/hwmon/hwmon2/rpm": "2100\n"},
            Health.OK,
            "at 50%, 2100 rpm",
        ),
    ],
)
def test_findings(
    tmp_path: Path, check: Check, files: dict[str, str], status: Health, seen: str
) -> None:
    write_all(tmp_path, {**ORIN, **files})
    expect(check, make_machine(tmp_path), status, seen=seen)


def test_missing_sensors_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, RELEASE_FILE, RELEASE)
    for check in (jetson.temperature, jetson.power_mode, jetson.gpu, jetson.fan):
        expect_skipped(check, make_machine(tmp_path))
    assert finding_of(jetson.release, make_machine(tmp_path)).seen.startswith("a Jetson, ")
