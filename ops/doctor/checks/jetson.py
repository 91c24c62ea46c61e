"""Checks of a Jetson: release, temperature, throttling, power mode, GPU and fan."""

from __future__ import annotations

import re
from pathlib import Path

from sluice.common.process.host import Host
from sluice.common.text import plural
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import Machine

#: Temperatures for a warning and a failure (an Orin throttles at 99 and shuts down at 105).
WARM_C, HOT_C = 85.0, 95.0
#: A fan should run at this temperature.
NEEDS_FAN_C = 70.0
#: JetPack versions by L4T release. Sluice is tested with 36.
JETPACKS = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7}
OLDEST_RELEASE = 36
_RELEASE = re.compile(r"R(\d+).*?REVISION:\s*([\d.]+)")
_MODEL_FILE, _RELEASE_FILE = "/proc/device-tree/model", "/etc/nv_tegra_release"
#: Names of cooling devices that throttle.
_THROTTLING_DEVICES = ("cpu", "gpu", "devfreq", "cur-cap", "throttle")


@check(
    "jetson.release",
    "the JetPack release is supported",
    "flash JetPack 6 or newer: its Ubuntu 22.04 has Python 3.10",
)
def release(machine: Machine) -> Finding:
    model = _require_jetson(machine)
    match = _RELEASE.search(machine.read(_RELEASE_FILE) or "")
    if match is None:
        return note(model, "unknown L4T release")
    major = int(match[1])
    jetpack = f"JetPack {JETPACKS[major]}" if major in JETPACKS else "unknown JetPack"
    seen = f"{model}, L4T {major}.{match[2]} ({jetpack})"
    if major < OLDEST_RELEASE:
        cause = "Python is older than 3.10, and systemd and Redis are outdated"
        return warn(seen, cause, "flash JetPack 6 or newer with NVIDIA's SDK Manager")
    return ok(seen)


@check(
    "jetson.temperature",
    f"the hottest zone is below {WARM_C:.0f} °C",
    "`sudo jetson_clocks --fan`, better airflow, a lower power mode (`sudo nvpmodel -m 1`); "
    "`MAX_TEMPERATURE_C` stops workers from taking new jobs",
)
def temperature(machine: Machine) -> Finding:
    """The Jetson throttles from 99 °C and shuts down from 105 °C."""
    _require_jetson(machine)
    reading = Host(machine.root).read()
    if reading.temperature_c is None:
        raise CheckSkipped("no thermal zone reports a temperature")
    seen = f"{reading.temperature_c:.1f} °C at {reading.hottest}"
    fix = "sudo jetson_clocks --fan; sudo nvpmodel -m 1 (see nvpmodel -p --verbose); clean the fan"
    if reading.temperature_c >= HOT_C:
        return fail(seen, "the Jetson throttles, and will shut down soon", fix)
    if reading.temperature_c >= WARM_C:
        return warn(seen, "the Jetson is close to throttling", fix)
    return ok(seen)


@check(
    "jetson.throttling",
    "CPU and GPU are not throttled because of heat or low current",
    "better cooling, a stronger power supply, or a lower power mode: `sudo nvpmodel -m 1`",
)
def throttling(machine: Machine) -> Finding:
    """Reads the cooling devices and the counters of over-current events."""
    _require_jetson(machine)
    throttled = []
    for device in _glob(machine, "sys/class/thermal/cooling_device*"):
        kind = _text(device / "type")
        if any(word in kind.lower() for word in _THROTTLING_DEVICES) and _number(
            device / "cur_state"
        ):
            throttled.append(kind)
    over_current = sum(
        _number(path) for path in _glob(machine, "sys/class/hwmon/hwmon*/oc*_event_cnt")
    )
    if throttled:
        cause = "the Jetson is too hot"
        return warn(
            f"throttled: {', '.join(sorted(set(throttled)))}", cause, "see jetson.temperature"
        )
    if over_current:
        return warn(
            f"{plural(over_current, 'over-current event')} since boot",
            "the power supply is too weak for the power mode",
            "use a stronger power supply, or a lower power mode: sudo nvpmodel -m 1",
        )
    return ok("no throttling")


@check(
    "jetson.power_mode",
    "the current power mode (information)",
    "`nvpmodel -p --verbose` lists the modes, `sudo nvpmodel -m NUMBER` sets one",
)
def power_mode(machine: Machine) -> Finding:
    """The power mode determines the number of cores and their frequency."""
    _require_jetson(machine)
    mode = Host(machine.root).read().power_mode
    if mode is None:
        raise CheckSkipped("nvpmodel reports no status")
    return ok(mode)


@check(
    "jetson.gpu",
    "the current GPU load (information)",
    "`sudo tegrastats` shows more",
)
def gpu(machine: Machine) -> Finding:
    _require_jetson(machine)
    load = Host(machine.root).read().gpu_load
    if load is None:
        raise CheckSkipped("the GPU does not report its load")
    return ok(f"{load:.0%} busy")


@check(
    "jetson.fan",
    "the fan runs when the Jetson is warm",
    "`sudo jetson_clocks --fan`; `sudo systemctl restart nvfancontrol`",
)
def fan(machine: Machine) -> Finding:
    _require_jetson(machine)
    powers = [_number(path) for path in _glob(machine, "sys/class/hwmon/hwmon*/pwm1")]
    if not powers:
        raise CheckSkipped("no fan reports its speed")
    speeds = [_number(path) for path in _glob(machine, "sys/class/hwmon/hwmon*/rpm")]
    rpm = f", {max(speeds)} rpm" if speeds else ""
    seen = f"at {max(powers) / 255:.0%}{rpm}"
    warm_c = Host(machine.root).read().temperature_c or 0.0
    if not max(powers) and warm_c >= NEEDS_FAN_C:
        cause = f"the fan is stopped at {warm_c:.0f} °C"
        return warn(seen, cause, "sudo systemctl restart nvfancontrol; sudo jetson_clocks --fan")
    return ok(seen)


def _require_jetson(machine: Machine) -> str:
    """The name of the Jetson; skips the check on another machine."""
    model = (machine.read(_MODEL_FILE) or "").strip("\0\n ")
    is_jetson = "jetson" in model.lower() or machine.read(_RELEASE_FILE) is not None
    if not is_jetson:
        raise CheckSkipped("this machine is not a Jetson")
    return model or "a Jetson"


def _glob(machine: Machine, pattern: str) -> list[Path]:
    return sorted(machine.root.glob(pattern))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0


CHECKS = (release, temperature, throttling, power_mode, gpu, fan)
