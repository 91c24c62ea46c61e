"""The tools that come with Sluice: no network, no files, no effects."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from worker.tools.tool import Tool
    from worker.tools.toolbox import ToolBox

#: Tools by name, which is that of their function, and in which module that is.
_MODULES: Final = {
    "calculator": "calculator",
    "now": "dates",
    "date_math": "dates",
    "convert_units": "units",
    "text_stats": "text_stats",
    "json_pick": "json_pick",
}


def register_tools(toolbox: ToolBox) -> None:
    """Add them all. Each may be called as often as one likes, and is imported when it first is."""
    for name in _MODULES:
        toolbox.put_late(name, partial(_make, name))


def _make(name: str) -> Tool:
    from worker.tools.tool import make_tool

    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    return make_tool(getattr(module, name), repeatable=True)
