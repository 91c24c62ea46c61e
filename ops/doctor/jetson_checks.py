"""A Jetson: how hot it is, whether it slows itself down, and for how much power it is set."""

from __future__ import annotations

import re
from pathlib import Path

from common.host import Host
from ops.doctor.box import Box
from ops.doctor.finding import Finding, Unable, check, fail, note, ok, warn
from ops.doctor.text import plural

#: Degrees from which on it is warm, and from which on it slows down or stops (Orin: 99 and 105).
WARM_C, HOT_C = 85.0, 95.0
#: With the fan standing still, this is too warm already.
NEEDS_FAN_C = 70.0
#: Releases of L4T and the JetPack they belong to; ours is tried on 36.
JETPACKS = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7}
OLDEST_RELEASE = 36
_RELEASE = re.compile(r"R(\d+).*?REVISION:\s*([\d.]+)")
_MODEL_FILE, _RELEASE_FILE = "/proc/device-tree/model", "/etc/nv_tegra_release"
#: Cooling devices that cool by slowing something down.
_SLOWING = ("cpu", "gpu", "devfreq", "cur-cap", "throttle")


@check(
    "jetson.release",
    "model and JetPack release are ones that Sluice is made for",
    "flash JetPack 6 or newer: its Ubuntu 22.04 has Python 3.10",
)
def release(box: Box) -> Finding:
    """L4T 36 is JetPack 6."""
    model = _require(box)
    match = _RELEASE.search(box.read(_RELEASE_FILE) or "")
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
def temperature(box: Box) -> Finding:
    """From 99 °C on it slows down, from 105 °C on it switches off."""
    _require(box)
    seen_now = Host(box.root).read()
    if seen_now.temperature_c is None:
        raise Unable("no zone tells its temperature")
    seen = f"{seen_now.temperature_c:.1f} °C at {seen_now.hottest}"
    fix = "sudo jetson_clocks --fan; sudo nvpmodel -m 1 (see nvpmodel -p --verbose); clean the fan"
    if seen_now.temperature_c >= HOT_C:
        return fail(seen, "it slows itself down, and soon switches itself off", fix)
    if seen_now.temperature_c >= WARM_C:
        return warn(seen, "it is close to slowing itself down", fix)
    return ok(seen)


@check(
    "jetson.throttling",
    "nothing slows the CPU or GPU down, neither heat nor want of current",
    "better cooling; a stronger power supply; a lower power mode: `sudo nvpmodel -m 1`",
)
def throttling(box: Box) -> Finding:
    """By its cooling devices, and by its count of over-current events."""
    _require(box)
    slowed = []
    for device in _glob(box, "sys/class/thermal/cooling_device*"):
        kind = _text(device / "type")
        if any(word in kind.lower() for word in _SLOWING) and _number(device / "cur_state"):
            slowed.append(kind)
    over_current = sum(_number(path) for path in _glob(box, "sys/class/hwmon/hwmon*/oc*_event_cnt"))
    if slowed:
        cause = "it is too hot: it slows down to cool"
        return warn(
            f"slowed down: {', '.join(sorted(set(slowed)))}", cause, "see jetson.temperature"
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
def power_mode(box: Box) -> Finding:
    """It decides how many cores run, and how fast."""
    _require(box)
    mode = Host(box.root).read().power_mode
    if mode is None:
        raise Unable("nvpmodel keeps no status here")
    return ok(mode)


@check(
    "jetson.gpu",
    "how busy the GPU is",
    "`sudo tegrastats` tells more",
)
def gpu(box: Box) -> Finding:
    """A number for people; busy is what a GPU is for."""
    _require(box)
    load = Host(box.root).read().gpu_load
    if load is None:
        raise Unable("the GPU does not tell its load")
    return ok(f"{load:.0%} busy")


@check(
    "jetson.fan",
    "the fan turns when it is warm",
    "`sudo jetson_clocks --fan`; `sudo systemctl restart nvfancontrol`",
)
def fan(box: Box) -> Finding:
    """Not every board has one."""
    _require(box)
    powers = [_number(path) for path in _glob(box, "sys/class/hwmon/hwmon*/pwm1")]
    if not powers:
        raise Unable("no fan that tells its speed")
    speeds = [_number(path) for path in _glob(box, "sys/class/hwmon/hwmon*/rpm")]
    turns = f", {max(speeds)} turns a minute" if speeds else ""
    seen = f"at {max(powers) / 255:.0%}{turns}"
    warm_c = Host(box.root).read().temperature_c or 0.0
    if not max(powers) and warm_c >= NEEDS_FAN_C:
        cause = f"it stands still at {warm_c:.0f} °C"
        return warn(seen, cause, "sudo systemctl restart nvfancontrol; sudo jetson_clocks --fan")
    return ok(seen)


def _require(box: Box) -> str:
    """The model's name; raises Unable on another machine."""
    model = (box.read(_MODEL_FILE) or "").strip("\0\n ")
    is_jetson = "jetson" in model.lower() or box.read(_RELEASE_FILE) is not None
    if not is_jetson:
        raise Unable("this is no Jetson")
    return model or "a Jetson"


def _glob(box: Box, pattern: str) -> list[Path]:
    return sorted(box.root.glob(pattern))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0


CHECKS = (release, temperature, throttling, power_mode, gpu, fan)
