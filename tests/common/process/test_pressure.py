"""Pressure limits: when work has to wait and when it may resume, with reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.process.host import (
    CALM_S,
    HostReadings,
    PressureGauge,
    pressure_bounds,
    unmeasured_bounds,
)
from common.settings.base import CommonSettings

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
