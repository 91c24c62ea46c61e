"""Built-in tools: no network access, no files, no side effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sluice.worker.features.tools.builtin.calculator import calculator
from sluice.worker.features.tools.builtin.dates import date_math, now
from sluice.worker.features.tools.builtin.json_pick import json_pick
from sluice.worker.features.tools.builtin.text_stats import text_stats
from sluice.worker.features.tools.builtin.units import convert_units
from sluice.worker.features.tools.tool import make_tool

if TYPE_CHECKING:
    from sluice.worker.features.tools.toolbox import ToolBox

#: Each tool is named after its function, and may be repeated after a crash.
_FUNCTIONS: Final = (calculator, now, date_math, convert_units, text_stats, json_pick)


def register_tools(toolbox: ToolBox) -> None:
    for function in _FUNCTIONS:
        toolbox.put(make_tool(function, repeatable=True), built_in=True)
