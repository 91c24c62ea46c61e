"""The tools that come with Sluice: no network, no files, no effects."""

from __future__ import annotations

from worker.tools.builtin import calculator, dates, json_pick, text_stats, units
from worker.tools.toolbox import ToolBox


def register_tools(toolbox: ToolBox) -> None:
    """Add them all. Each may be called as often as one likes."""
    for function in (
        calculator.calculator,
        dates.now,
        dates.date_math,
        units.convert_units,
        text_stats.text_stats,
        json_pick.json_pick,
    ):
        toolbox.add(function, repeatable=True)
