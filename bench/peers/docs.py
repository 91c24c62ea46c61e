"""Writes the section on other job queues in `docs/benchmarks.md`, and its chart."""

from __future__ import annotations

from pathlib import Path

from bench.measured import PATH as _COSTS
from bench.measured import keep
from bench.peers.field import SLUICE, SLUICE_HTTP
from bench.peers.plots import draw
from bench.peers.report import HEADING, PICTURE, section
from bench.peers.results import FieldResults
from bench.sections import put

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def write(results: FieldResults) -> list[Path]:
    """Writes both; returns their paths."""
    page, picture = _DOCS / "benchmarks.md", _DOCS / PICTURE
    picture.write_text(draw(results))
    page.write_text(put(page.read_text(), HEADING, section(results)))
    return [page, picture, *_keep_costs(results)]


def _keep_costs(results: FieldResults) -> list[Path]:
    """Stores costs for the simulation."""
    if not {SLUICE, SLUICE_HTTP} <= set(results.finished):
        return []
    keep(
        _COSTS,
        redis_enqueue_us=results.middle(SLUICE_HTTP, lambda row: row.enqueue_redis_us),
        gateway_us=results.middle(SLUICE_HTTP, lambda row: row.gateway_us),
    )
    return [_COSTS]
