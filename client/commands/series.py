"""What `sluice stats` and `sluice top` show of the gateway's numbers over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from client.terminal.text import duration, number, size

Values = Sequence[float | None]


class Line(NamedTuple):
    """One column of the numbers: its name, ours for it, and how a value is said."""

    column: str
    title: str
    say: Callable[[float | None], str]
    #: Counted within a row's time, so that it is shown by the second.
    per_second: bool = False


def _whole(value: float | None) -> str:
    return number(value)


def _rate(value: float | None) -> str:
    return number(value, 1)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} °C"


LINES = (
    Line("accepted", "accepted/s", _rate, True),
    Line("done", "done/s", _rate, True),
    Line("error", "failed/s", _rate, True),
    Line("canceled", "canceled/s", _rate, True),
    Line("e2e_p50_ms", "latency p50", duration),
    Line("e2e_p95_ms", "latency p95", duration),
    Line("e2e_p99_ms", "latency p99", duration),
    Line("queue_wait_p95_ms", "queue wait p95", duration),
    Line("depth", "waiting", _whole),
    Line("pending", "with workers", _whole),
    Line("scheduled", "scheduled", _whole),
    Line("dead_letters", "dead letters", _whole),
    Line("oldest_age_ms", "oldest waits", duration),
    Line("running", "running", _whole),
    Line("completion_tokens_per_s", "tokens/s", _rate),
    Line("sse_clients", "streams", _whole),
    Line("workers_rss_bytes", "workers' memory", size),
    Line("available_bytes", "free memory", size),
    Line("temperature_c", "temperature", _degrees),
    Line("gpu_load", "GPU", _share),
    Line("loop_lag_ms", "loop lag", duration),
)


def column(stats: Mapping[str, Any], name: str) -> list[float | None]:
    """A column of the numbers; empty where the gateway has none."""
    series = stats.get("series")
    values = series.get(name) if isinstance(series, Mapping) else None
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, (int, float)) else None for value in values]


def values_of(stats: Mapping[str, Any], line: Line) -> list[float | None]:
    """The same as it is shown."""
    values = column(stats, line.column)
    seconds = stats.get("resolution_s")
    if not line.per_second or not isinstance(seconds, (int, float)) or seconds <= 0:
        return values
    return [None if value is None else value / seconds for value in values]


def known(values: Values) -> list[float]:
    """Without gaps."""
    return [value for value in values if value is not None]


def newest(values: Values) -> float | None:
    """The last that is known."""
    return next((value for value in reversed(values) if value is not None), None)
