"""Charts of a run as plain SVG: bars for ratios, lines for growth."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.results import DRAIN_GOAL, POST_GOAL, Results

_WIDTH = 760
_PAD, _LABEL, _BAR, _GAP = 24, 190, 20, 8
#: A label that begins closer than this to the line of the goal is drawn behind the line.
_LABEL_NEAR = 60
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:15px}"
    ".page{fill:#fff}"
    ".note{fill:#57606a;font-size:12px}.ours{fill:#0969da}.other{fill:#afb8c1}"
    ".line{fill:none;stroke-width:2}.goal{stroke:#cf222e;stroke-dasharray:4 3}"
)
Bar = tuple[str, float, str, bool]


class Canvas:
    """Draws shapes from top to bottom."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._top = _PAD

    def title(self, text: str, note: str) -> None:
        """A heading with an explanation."""
        self._text(_PAD, self._top + 14, text, "title")
        self._text(_PAD, self._top + 32, note, "note")
        self._top += 46

    def bars(self, bars: Sequence[Bar], goal: float | None = None) -> None:
        """Bars with label, length, end label and highlight; a dashed line at the goal."""
        unit = (_WIDTH - _LABEL - 2 * _PAD - 110) / max([bar[1] for bar in bars] + [goal or 0.0])
        begin, first_top = _PAD + _LABEL, self._top
        line = begin + (goal or 0.0) * unit
        for label, length, end, ours in bars:
            width = max(length * unit, 1)
            self._text(_PAD, self._top + 15, label)
            self._add(
                f'<rect class="{"ours" if ours else "other"}" x="{begin}" y="{self._top}" '
                f'width="{width:.1f}" height="{_BAR}" rx="3"/>'
            )
            right = begin + width
            near = goal is not None and right <= line < right + _LABEL_NEAR
            self._text((line if near else right) + 8, self._top + 15, end)
            self._top += _BAR + _GAP
        if goal is not None:
            self._line("goal", [(line, first_top - 4), (line, self._top)])
        self._top += _PAD

    def curve(self, labels: Sequence[str], lines: dict[str, tuple[str, Sequence[float]]]) -> None:
        """Lines over evenly spaced labels, with the axis from zero."""
        height, begin, end = 130, _PAD + 30, _WIDTH - 240
        highest = max(max(numbers) for _, numbers in lines.values()) * 1.1
        floor = self._top + height
        step = (end - begin) / max(len(labels) - 1, 1)
        for index, label in enumerate(labels):
            self._text(begin + index * step - 16, floor + 18, label, "note")
        for name, (color, numbers) in lines.items():
            points = [
                (begin + index * step, floor - number / highest * height)
                for index, number in enumerate(numbers)
            ]
            self._line("line", points, color)
            ending = f"{name}: {numbers[0]:.0f} to {numbers[-1]:.0f}"
            self._text(points[-1][0] + 10, points[-1][1] + 4, ending)
        self._line("line", [(begin, floor), (end, floor)], "#afb8c1")
        self._top = floor + 18 + _PAD

    def render(self) -> str:
        size = f'width="{_WIDTH}" height="{self._top}" viewBox="0 0 {_WIDTH} {self._top}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        page = '<rect class="page" width="100%" height="100%"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", page, *self._parts, "</svg>", ""])

    def _add(self, part: str) -> None:
        self._parts.append(part)

    def _text(self, x: float, y: float, text: str, kind: str = "") -> None:
        style = f' class="{kind}"' if kind else ""
        self._add(f'<text{style} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def _line(self, kind: str, points: Sequence[tuple[float, float]], color: str = "") -> None:
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = f' stroke="{color}"' if color else ""
        self._add(f'<polyline class="{kind}"{stroke} points="{coordinates}"/>')


def draw(results: Results) -> str:
    """Charts of drain, POST, fan-out and growth."""
    canvas = Canvas()
    if not results.quiet:
        canvas.title("Not evaluated", "measured while the machine was busy with other work")
    drain, floor = results.drain_ratio, results.drain_ratio / results.floor_share
    canvas.title("Worker drain", "jobs per second, naive worker = 1; dashed: target of this page")
    canvas.bars(
        [
            ("naive worker", 1.0, "1", False),
            ("Sluice", drain, f"{drain:.1f}", True),
            ("Redis floor", floor, f"{floor:.0f}", False),
        ],
        goal=DRAIN_GOAL,
    )
    canvas.title(
        "POST /v1/jobs", "requests per second, empty FastAPI route = 1; dashed: target of this page"
    )
    post = results.post_ratio
    canvas.bars(
        [("empty route", 1.0, "1", False), ("Sluice", post, f"{post:.2f}", True)], goal=POST_GOAL
    )
    canvas.title("Redis connections for live events", "of one gateway process, by clients")
    bars: list[Bar] = []
    for ours, naive in results.fanout_pairs:
        for name, row in (("XREAD per client", naive), ("Sluice", ours)):
            end = f"{row.redis_connections:,}; p50 {row.p50_ms:.1f} ms"
            label = f"{name}, {row.clients:,}"
            bars.append((label, float(row.redis_connections), end, row is ours))
    canvas.bars(bars)
    canvas.title("Growth", "microseconds per job by number of waiting jobs")
    curve = results.growth_medians
    canvas.curve(
        [f"{cost.backlog:,}" for cost in curve],
        {
            "worker CPU": ("#0969da", [cost.worker_cpu_us for cost in curve]),
            "enqueue": ("#1a7f37", [cost.enqueue_us for cost in curve]),
        },
    )
    return canvas.render()
