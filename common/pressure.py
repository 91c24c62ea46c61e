"""When the box has had enough: bounds for memory and heat, and when they are over again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from common.host import Readings

if TYPE_CHECKING:
    from common.settings import CommonSettings

#: Seconds between two looks at the box.
SAMPLE_EVERY_S = 2.0
#: Pressure is over when the box was clearly below the bound for so many seconds.
CALM_S = 6.0
#: What is clearly below: this part of a pressure, this part of free memory, so many degrees.
CALM_PRESSURE, CALM_MEMORY, CALM_DEGREES = 0.8, 1.1, 5.0


class Bound(NamedTuple):
    """One thing that may become too much: when it is, when it is no longer, and in words."""

    #: Who set it.
    setting: str
    #: Whether it is too much, whether it still is once it was; None where there is no reading.
    is_crossed: Callable[[Readings], bool | None]
    is_tense: Callable[[Readings], bool | None]
    words: Callable[[Readings], str]


def bounds_of(settings: CommonSettings) -> list[Bound]:
    """The bounds that an operator has set; none by default."""
    bounds = []
    if settings.max_memory_pressure > 0:
        bounds.append(_memory_pressure(settings.max_memory_pressure))
    if settings.min_available_mb > 0:
        bounds.append(_available(settings.min_available_mb))
    if settings.max_temperature_c > 0:
        bounds.append(_temperature(settings.max_temperature_c))
    return bounds


def _memory_pressure(most: float) -> Bound:
    def above(limit: float) -> Callable[[Readings], bool | None]:
        return lambda now: None if now.memory_pressure is None else now.memory_pressure >= limit

    return Bound(
        "MAX_MEMORY_PRESSURE",
        above(most),
        above(most * CALM_PRESSURE),
        lambda now: f"memory pressure is {now.memory_pressure:.1f} %, {most:g} % is the limit",
    )


def _available(least_mb: int) -> Bound:
    def below(limit: float) -> Callable[[Readings], bool | None]:
        return lambda now: None if now.available_mb is None else now.available_mb < limit

    return Bound(
        "MIN_AVAILABLE_MB",
        below(least_mb),
        below(least_mb * CALM_MEMORY),
        lambda now: f"{now.available_mb} MB of memory are available, {least_mb} are the least",
    )


def _temperature(most_c: float) -> Bound:
    def above(limit: float) -> Callable[[Readings], bool | None]:
        return lambda now: None if now.temperature_c is None else now.temperature_c >= limit

    return Bound(
        "MAX_TEMPERATURE_C",
        above(most_c),
        above(most_c - CALM_DEGREES),
        lambda now: f"{now.hottest} is at {now.temperature_c:.1f} °C, {most_c:g} °C is the limit",
    )


@dataclass
class _Watched:
    bound: Bound
    #: Since when it is clearly below; None while it is not.
    calm_since: float | None = None
    #: Why work waits; empty while it does not.
    reason: str = ""


class Gauge:
    """Follows readings over time. What is crossed stays so until the box has been calm a while,

    so that work is not stopped and begun again with every breath.
    """

    def __init__(self, bounds: list[Bound]) -> None:
        self._watched = [_Watched(bound) for bound in bounds]
        #: Why no new work should be begun, in words; empty when it may.
        self.reasons: tuple[str, ...] = ()

    def look(self, readings: Readings, now: float) -> bool:
        """Take readings into account; returns whether work now has to wait, or may go on again."""
        before = bool(self.reasons)
        for watched in self._watched:
            _update(watched, readings, now)
        self.reasons = tuple(watched.reason for watched in self._watched if watched.reason)
        return before != bool(self.reasons)


def unmeasured(bounds: list[Bound], readings: Readings) -> str:
    """Bounds that were set where nothing tells whether they are crossed; a sandbox may hide it."""
    return ", ".join(bound.setting for bound in bounds if bound.is_crossed(readings) is None)


def _update(watched: _Watched, readings: Readings, now: float) -> None:
    bound = watched.bound
    if bound.is_crossed(readings):
        watched.reason, watched.calm_since = bound.words(readings), None
    elif not watched.reason:
        return
    elif bound.is_tense(readings):
        watched.reason, watched.calm_since = bound.words(readings), None
    elif watched.calm_since is None:  # a sensor that fell silent counts as calm, not for ever
        watched.calm_since = now
    elif now - watched.calm_since >= CALM_S:
        watched.reason, watched.calm_since = "", None
