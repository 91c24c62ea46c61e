"""Checks of a Jetson on a fake machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.doctor.checks import jetson
from ops.doctor.finding import Check, CheckSkipped, Health
from tests.ops.doctor.machines import finding_of, make_machine, status_of, write

MODEL = "NVIDIA Jetson Orin Nano Developer Kit\0"
RELEASE = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    write(tmp_path, "/proc/device-tree/model", MODEL)
    write(tmp_path, "/etc/nv_tegra_release", RELEASE)
    write(tmp_path, "/var/lib/nvpmodel/status", "pmode:0001 fmode:quiet\n")
    write(tmp_path, "/etc/nvpmodel.conf", "< POWER_MODEL ID=1 NAME=25W >\n")
    write(tmp_path, "/sys/devices/platform/gpu.0/load", "421\n")
    write(tmp_path, "/sys/class/hwmon/hwmon0/pwm1", "0\n")
    warm(tmp_path, 48_500)
    return tmp_path


def warm(root: Path, millidegrees: int) -> None:
    write(root, "/sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
    write(root, "/sys/class/thermal/thermal_zone0/temp", f"{millidegrees}\n")


@pytest.mark.parametrize("check", jetson.CHECKS, ids=lambda check: check.name)
def test_other_machines_are_skipped(tmp_path: Path, check: Check) -> None:
    write(tmp_path, "/proc/device-tree/model", "Raspberry Pi 5\0")
    warm(tmp_path, 120_000)
    with pytest.raises(CheckSkipped, match="not a Jetson"):
        check.run(make_machine(tmp_path))


def test_healthy_jetson(orin: Path) -> None:
    found = {check.name: finding_of(check, make_machine(orin)) for check in jetson.CHECKS}
    assert {finding.status for finding in found.values()} == {Health.OK}
    assert found["jetson.release"].seen == (
        "NVIDIA Jetson Orin Nano Developer Kit, L4T 36.4.3 (JetPack 6)"
    )
    assert found["jetson.temperature"].seen == "48.5 °C at cpu-thermal"
    assert found["jetson.power_mode"].seen == "25W"
    assert found["jetson.gpu"].seen == "42% busy"


def test_old_release(orin: Path) -> None:
    write(orin, "/etc/nv_tegra_release", RELEASE.replace("R36", "R35"))
    found = finding_of(jetson.release, make_machine(orin))
    assert found.status is Health.WARN
    assert "JetPack 5" in found.seen
    write(orin, "/etc/nv_tegra_release", "nonsense")
    assert status_of(jetson.release, make_machine(orin)) is Health.NOTE


@pytest.mark.parametrize(
    ("millidegrees", "status"), [(84_000, Health.OK), (88_000, Health.WARN), (97_000, Health.FAIL)]
)
def test_temperature(orin: Path, millidegrees: int, status: Health) -> None:
    warm(orin, millidegrees)
    assert status_of(jetson.temperature, make_machine(orin)) is status


def test_throttled_by_heat(orin: Path) -> None:
    write(orin, "/sys/class/thermal/cooling_device0/type", "cpufreq-cpu0\n")
    write(orin, "/sys/class/thermal/cooling_device0/cur_state", "0\n")
    write(orin, "/sys/class/thermal/cooling_device1/type", "pwm-fan\n")
    write(orin, "/sys/class/thermal/cooling_device1/cur_state", "3\n")
    assert status_of(jetson.throttling, make_machine(orin)) is Health.OK  # a fan does not throttle
    write(orin, "/sys/class/thermal/cooling_device0/cur_state", "2\n")
    found = finding_of(jetson.throttling, make_machine(orin))
    assert found.status is Health.WARN
    assert "cpufreq-cpu0" in found.seen


def test_over_current_events(orin: Path) -> None:
    write(orin, "/sys/class/hwmon/hwmon1/oc1_event_cnt", "3\n")
    found = finding_of(jetson.throttling, make_machine(orin))
    assert found.status is Health.WARN
    assert "3 over-current events" in found.seen


def test_stopped_fan(orin: Path) -> None:
    warm(orin, 76_000)
    assert status_of(jetson.fan, make_machine(orin)) is Health.WARN
    write(orin, "/sys/class/hwmon/hwmon0/pwm1", "128\n")
    write(orin, "/sys/class/hwmon/hwmon2/rpm", "2100\n")
    assert finding_of(jetson.fan, make_machine(orin)).seen == "at 50%, 2100 rpm"


def test_missing_sensors_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, "/etc/nv_tegra_release", RELEASE)
    for check in (jetson.temperature, jetson.power_mode, jetson.gpu, jetson.fan):
        with pytest.raises(CheckSkipped):
            check.run(make_machine(tmp_path))
    assert finding_of(jetson.release, make_machine(tmp_path)).seen.startswith("a Jetson, ")
