"""Checks of a Jetson: release, temperature, throttling, power mode, GPU and fan."""

from __future__ import annotations

import re
from pathlib import Path

from common.process.host import Host
from common.text import plural
from ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from ops.doctor.machine import Machine

#: Temperatures that are a warning and a failure (an Orin throttles at 99 and stops at 105).
WARM_C, HOT_C = 85.0, 95.0
#: Too warm for a fan that does not turn.
NEEDS_FAN_C = 70.0
#: JetPack versions by L4T release; tested with 36.
JETPACKS = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7}
OLDEST_RELEASE = 36
_RELEASE = re.compile(r"R(\d+).*?REVISION:\s*([\d.]+)")
_MODEL_FILE, _RELEASE_FILE = "/proc/device-tree/model", "/etc/nv_tegra_release"
#: Names of cooling devices that throttle.
_THROTTLING_DEVICES = ("cpu", "gpu", "devfreq", "cur-cap", "throttle")


@check(
    "jetson.release",
    "model and JetPack release are ones that Sluice is made for",
    "flash JetPack 6 or newer: its Ubuntu 22.04 has Python 3.10",
)
def release(machine: Machine) -> Finding:
    model = _require_jetson(machine)
    match = _RELEASE.search(machine.read(_RELEASE_FILE) or "")
    if match is None:
        return note(model, "its release of L4T is not known")
    major = int(match[1])
    jetpack = f"JetPack {JETPACKS[major]}" if major in JETPACKS else "a JetPack not known here"
    seen = f"{model}, L4T {major}.{match[2]} ({jetpack})"
    if major < OLDEST_RELEASE:
        cause = "its Python is older than 3.10, and its systemd and Redis are old too"
        return warn(seen, cause, "flash JetPack 6 or newer with NVIDIA's SDK Manager")
    return ok(seen)


@check(
    "jetson.temperature",
    f"the hottest zone is below {WARM_C:.0f} °C",
    "`sudo jetson_clocks --fan`, a free airflow, a lower power mode: `sudo nvpmodel -m 1`; "
    "`MAX_TEMPERATURE_C` holds new work back",
)
def temperature(machine: Machine) -> Finding:
    """From 99 °C on it slows down, from 105 °C on it switches off."""
    _require_jetson(machine)
    reading = Host(machine.root).read()
    if reading.temperature_c is None:
        raise CheckSkipped("no zone tells its temperature")
    seen = f"{reading.temperature_c:.1f} °C at {reading.hottest}"
    fix = "sudo jetson_clocks --fan; sudo nvpmodel -m 1 (see nvpmodel -p --verbose); clean the fan"
    if reading.temperature_c >= HOT_C:
        return fail(seen, "it slows itself down, and soon switches itself off", fix)
    if reading.temperature_c >= WARM_C:
        return warn(seen, "it is close to slowing itself down", fix)
    return ok(seen)


@check(
    "jetson.throttling",
    "nothing slows the CPU or GPU down, neither heat nor want of current",
    "better cooling; a stronger power supply; a lower power mode: `sudo nvpmodel -m 1`",
)
def throttling(machine: Machine) -> Finding:
    """By its cooling devices and its over-current events."""
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
        cause = "it is too hot: it slows down to cool"
        return warn(
            f"slowed down: {', '.join(sorted(set(throttled)))}", cause, "see jetson.temperature"
        )
    if over_current:
        return warn(
            f"{plural(over_current, 'over-current event')} since it was switched on",
            "the power supply cannot give what the power mode asks for",
            "a stronger power supply, or a lower power mode: sudo nvpmodel -m 1",
        )
    return ok("nothing is slowed down")


@check(
    "jetson.power_mode",
    "in which power mode it runs",
    "`nvpmodel -p --verbose` lists the modes, `sudo nvpmodel -m NUMBER` sets one",
)
def power_mode(machine: Machine) -> Finding:
    """The power mode sets how many cores run, and how fast."""
    _require_jetson(machine)
    mode = Host(machine.root).read().power_mode
    if mode is None:
        raise CheckSkipped("nvpmodel keeps no status here")
    return ok(mode)


@check(
    "jetson.gpu",
    "how busy the GPU is",
    "`sudo tegrastats` tells more",
)
def gpu(machine: Machine) -> Finding:
    _require_jetson(machine)
    load = Host(machine.root).read().gpu_load
    if load is None:
        raise CheckSkipped("the GPU does not tell its load")
    return ok(f"{load:.0%} busy")


@check(
    "jetson.fan",
    "the fan turns when it is warm",
    "`sudo jetson_clocks --fan`; `sudo systemctl restart nvfancontrol`",
)
def fan(machine: Machine) -> Finding:
    _require_jetson(machine)
    powers = [_number(path) for path in _glob(machine, "sys/class/hwmon/hwmon*/pwm1")]
    if not powers:
        raise CheckSkipped("no fan that tells its speed")
    speeds = [_number(path) for path in _glob(machine, "sys/class/hwmon/hwmon*/rpm")]
    turns = f", {max(speeds)} turns a minute" if speeds else ""
    seen = f"at {max(powers) / 255:.0%}{turns}"
    warm_c = Host(machine.root).read().temperature_c or 0.0
    if not max(powers) and warm_c >= NEEDS_FAN_C:
        cause = f"it stands still at {warm_c:.0f} °C"
        return warn(seen, cause, "sudo systemctl restart nvfancontrol; sudo jetson_clocks --fan")
    return ok(seen)


def _require_jetson(machine: Machine) -> str:
    """The name of the Jetson; skips the check on another machine."""
    model = (machine.read(_MODEL_FILE) or "").strip("\0\n ")
    is_jetson = "jetson" in model.lower() or machine.read(_RELEASE_FILE) is not None
    if not is_jetson:
        raise CheckSkipped("this is no Jetson")
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
