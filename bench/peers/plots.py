"""The chart of the compared systems; Sluice's bars have another color."""

from __future__ import annotations

from collections.abc import Callable

from bench.peers.field import BY_KEY
from bench.peers.results import IDLE_MB_GOAL, OURS, FieldResults
from bench.svg import Bar, Canvas


def draw(results: FieldResults) -> str:
    """Charts of drain, latency, CPU and memory."""
    canvas = Canvas()
    if not results.quiet:
        canvas.title("Not evaluated", "measured while the machine was busy with other work")
    canvas.title("Worker drain", "jobs per second; more is better")
    canvas.bars(
        _bars(results, lambda key: results.middle(key, lambda row: row.drain_per_s), "{:,.0f}", -1)
    )
    canvas.title(
        "One job at a time", "milliseconds until the result is available, p50; less is better"
    )
    canvas.bars(_bars(results, results.p50, "{:.2f} ms"))
    canvas.title("CPU", "microseconds of worker and Redis per job; less is better")
    canvas.bars(_bars(results, lambda key: _cpu(results, key), "{:,.0f} µs"))
    if results.idle_mb:
        canvas.title(
            "Memory", "megabytes of an idle worker; less is better; dashed: target of this page"
        )
        known = [key for key in results.finished if key in results.idle_mb]
        canvas.bars(
            _bars(results, results.idle_mb.__getitem__, "{:.0f} MB", among=known),
            goal=IDLE_MB_GOAL,
        )
    return canvas.render()


def _bars(
    results: FieldResults,
    length: Callable[[str], float],
    label: str,
    sign: int = 1,
    among: list[str] | None = None,
) -> list[Bar]:
    """One bar per system, best first."""
    keys = sorted(among or results.finished, key=lambda key: sign * length(key))
    return [
        (BY_KEY[key].title, length(key), label.format(length(key)), key in OURS) for key in keys
    ]


def _cpu(results: FieldResults, key: str) -> float:
    return results.middle(key, lambda row: row.worker_cpu_us + row.redis_cpu_us)
