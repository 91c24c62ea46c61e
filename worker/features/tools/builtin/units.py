"""The `convert_units` tool."""

from __future__ import annotations

import math
from typing import Any, Final

from pydantic import Field

from sluice.worker.features.tools.builtin.arguments import Arguments, ToolInputError
from sluice.worker.features.tools.tool import Call

#: By quantity: each unit as a multiple of the first.
_FACTORS: Final[dict[str, dict[str, float]]] = {
    "length": {
        "m": 1, "km": 1e3, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9, "in": 0.0254,
        "ft": 0.3048, "yd": 0.9144, "mi": 1609.344, "nmi": 1852, "ly": 9.4607304725808e15,
        "au": 149_597_870_700,
    },
    "mass": {
        "kg": 1, "g": 1e-3, "mg": 1e-6, "t": 1e3, "oz": 0.028349523125, "lb": 0.45359237,
        "st": 6.35029318,
    },
    "time": {
        "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60, "h": 3600, "d": 86_400,
        "wk": 604_800, "yr": 31_557_600,
    },
    "area": {
        "m2": 1, "km2": 1e6, "cm2": 1e-4, "mm2": 1e-6, "ha": 1e4, "acre": 4046.8564224,
        "ft2": 0.09290304, "in2": 0.00064516, "mi2": 2_589_988.110336,
    },
    "volume": {
        "l": 1, "ml": 1e-3, "m3": 1e3, "cm3": 1e-3, "gal": 3.785411784, "qt": 0.946352946,
        "pt": 0.473176473, "cup": 0.2365882365, "floz": 0.0295735295625, "tbsp": 0.01478676478125,
        "tsp": 0.00492892159375, "ft3": 28.316846592, "in3": 0.016387064,
    },
    "speed": {"m/s": 1, "km/h": 1 / 3.6, "mph": 0.44704, "kn": 1852 / 3600, "ft/s": 0.3048},
    "pressure": {
        "pa": 1, "hpa": 1e2, "kpa": 1e3, "bar": 1e5, "mbar": 1e2, "psi": 6894.757293168,
        "atm": 101_325, "mmhg": 133.322387415,
    },
    "energy": {
        "j": 1, "kj": 1e3, "wh": 3600, "kwh": 3.6e6, "cal": 4.184, "kcal": 4184,
        "btu": 1055.05585262, "ev": 1.602176634e-19,
    },
    "power": {"w": 1, "kw": 1e3, "mw": 1e6, "hp": 745.6998715822702},
    "information": {
        "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20,
        "gib": 2**30, "tib": 2**40, "bit": 0.125, "kbit": 125, "mbit": 125e3, "gbit": 125e6,
    },
    "angle": {"rad": 1, "deg": math.pi / 180, "turn": math.tau},
}  # fmt: skip
#: Size of a degree relative to kelvin, and the value of absolute zero.
_TEMPERATURES: Final[dict[str, tuple[float, float]]] = {
    "k": (1.0, 0.0),
    "c": (1.0, -273.15),
    "f": (1.8, -459.67),
}
_QUANTITY_OF: Final = {
    unit: quantity for quantity, units in _FACTORS.items() for unit in units
} | dict.fromkeys(_TEMPERATURES, "temperature")
#: Significant digits of results.
_DIGITS = 12


class UnitsArguments(Arguments):
    """Arguments of `convert_units`."""

    value: float = Field(description="How many of `from_unit`.")
    from_unit: str = Field(
        max_length=16, description=f"One of {', '.join(sorted(_QUANTITY_OF))}; case is ignored."
    )
    to_unit: str = Field(max_length=16, description="Another unit of the same quantity.")


async def convert_units(call: Call, arguments: UnitsArguments) -> dict[str, Any]:
    """Converts a value between units of length, mass, time, temperature, area, volume and more."""
    source, target = _unit(arguments.from_unit), _unit(arguments.to_unit)
    quantity, other = _QUANTITY_OF[source], _QUANTITY_OF[target]
    if quantity != other:
        raise ToolInputError(f"{source} is a unit of {quantity}, {target} of {other}")
    if quantity == "temperature":
        value = _temperature(arguments.value, source, target)
    else:
        factors = _FACTORS[quantity]
        value = arguments.value * factors[source] / factors[target]
    if not math.isfinite(value):
        raise ToolInputError("the result would be too large")
    return {"value": float(f"{value:.{_DIGITS}g}"), "unit": target, "quantity": quantity}


def _unit(text: str) -> str:
    unit = text.strip().lower().lstrip("°").replace("²", "2").replace("³", "3").replace("µ", "u")
    if unit not in _QUANTITY_OF:
        raise ToolInputError(
            f"unknown unit {text!r}; known units: {', '.join(sorted(_QUANTITY_OF))}"
        )
    return unit


def _temperature(value: float, source: str, target: str) -> float:
    size, zero = _TEMPERATURES[source]
    kelvin = (value - zero) / size
    if kelvin < -1e-9:
        raise ToolInputError("the temperature is below absolute zero")
    size, zero = _TEMPERATURES[target]
    return kelvin * size + zero
