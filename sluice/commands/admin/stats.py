"""`sluice stats`: statistics of the gateway over time. `sluice top` shows the same metrics."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import JSONL, Console, add_output_options
from sluice.terminal.render import Column, sparkline
from sluice.terminal.text import format_bytes, format_duration, format_number

Values = Sequence[float | None]
RANGES = ("10m", "1h", "6h", "24h", "14d")
CURVE_WIDTH = 40


class Metric(NamedTuple):
    """One column of the statistics: its name, title, and number format."""

    column: str
    title: str
    format: Callable[[float | None], str]
    #: A count per interval, shown per second.
    per_second: bool = False


def _whole(value: float | None) -> str:
    return format_number(value)


def _rate(value: float | None) -> str:
    return format_number(value, 1)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} °C"


METRICS = (
    Metric("accepted", "accepted/s", _rate, True),
    Metric("done", "done/s", _rate, True),
    Metric("error", "failed/s", _rate, True),
    Metric("canceled", "canceled/s", _rate, True),
    Metric("e2e_p50_ms", "latency p50", format_duration),
    Metric("e2e_p95_ms", "latency p95", format_duration),
    Metric("e2e_p99_ms", "latency p99", format_duration),
    Metric("queue_wait_p95_ms", "queue wait p95", format_duration),
    Metric("depth", "waiting", _whole),
    Metric("pending", "in progress", _whole),
    Metric("scheduled", "scheduled", _whole),
    Metric("dead_letters", "dead letters", _whole),
    Metric("oldest_age_ms", "oldest waiting", format_duration),
    Metric("running", "running", _whole),
    Metric("completion_tokens_per_s", "tokens/s", _rate),
    Metric("sse_clients", "streams", _whole),
    Metric("workers_rss_bytes", "workers' memory", format_bytes),
    Metric("available_bytes", "free memory", format_bytes),
    Metric("temperature_c", "temperature", _degrees),
    Metric("gpu_load", "GPU", _share),
    Metric("loop_lag_ms", "loop lag", format_duration),
)


def metric_values(stats: Mapping[str, Any], metric: Metric) -> list[float | None]:
    """The values of a metric, oldest first; empty if the gateway does not have it."""
    values = _column(stats, metric.column)
    seconds = stats.get("resolution_s")
    if not metric.per_second or not isinstance(seconds, (int, float)) or seconds <= 0:
        return values
    return [None if value is None else value / seconds for value in values]


def _column(stats: Mapping[str, Any], name: str) -> list[float | None]:
    series = stats.get("series")
    values = series.get(name) if isinstance(series, Mapping) else None
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, (int, float)) else None for value in values]


def without_gaps(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def latest(values: Values) -> float | None:
    """The last value that is not None."""
    return next((value for value in reversed(values) if value is not None), None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show each metric over the given time range: current value, mean, maximum and a curve. "
        "With -o jsonl, print one row of numbers per line, oldest first."
    )
    parser.epilog = """Examples:
  sluice stats
  sluice stats 24h
  sluice stats 1h -o jsonl"""
    parser.add_argument("range", nargs="?", choices=RANGES, default=RANGES[0])
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    stats = dict(connect(arguments).stats(arguments.range).raw)
    if console.output == JSONL:
        for row in _points(stats):
            console.print_json(row)
    elif not console.is_table:
        console.print_json(stats)
    else:
        rows = list(_metric_rows(stats))
        columns = (
            Column("", lambda row: row["title"]),
            Column("NOW", lambda row: row["now"], right=True),
            Column("MEAN", lambda row: row["mean"], right=True),
            Column("MAX", lambda row: row["most"], right=True),
            Column(f"LAST {arguments.range}", lambda row: row["curve"]),
        )
        console.print_rows(columns, rows, "no statistics yet; try again in a few seconds")
    return ExitCode.OK


def _points(stats: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    series = stats.get("series")
    if not isinstance(series, Mapping) or not all(isinstance(c, list) for c in series.values()):
        return
    for values in zip(*series.values()):
        yield dict(zip(series, values))


def _metric_rows(stats: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for metric in METRICS:
        values = metric_values(stats, metric)
        known = without_gaps(values)
        if known:
            yield {
                "title": metric.title,
                "now": metric.format(latest(values)),
                "mean": metric.format(sum(known) / len(known)),
                "most": metric.format(max(known)),
                "curve": sparkline(values, CURVE_WIDTH),
            }
