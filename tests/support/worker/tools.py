"""Helpers of the tool tests."""

from __future__ import annotations

import asyncio
from typing import Any

from worker.features.tools import builtin
from worker.features.tools.call import ToolOutput
from worker.features.tools.tool import Call
from worker.features.tools.toolbox import ToolBox

CALL = Call("job", "job:call")
ANYTHING: dict[str, Any] = {"type": "object"}


class Job:
    """A job that a call may belong to."""

    job_id = "job-1"
    tenant = "acme"

    def __init__(self) -> None:
        self.canceled = asyncio.Event()

    async def wait_for_cancel(self) -> None:
        await self.canceled.wait()


def builtin_tools() -> ToolBox:
    """A toolbox with the built-in tools."""
    toolbox = ToolBox()
    builtin.register_tools(toolbox)
    return toolbox


async def use(name: str, toolbox: ToolBox | None = None, **arguments: Any) -> Any:
    """Call a tool; returns its output."""
    output = await output_of(name, toolbox, **arguments)
    return output.value


async def output_of(name: str, toolbox: ToolBox | None = None, **arguments: Any) -> ToolOutput:
    """Call a tool; returns the ToolOutput."""
    toolbox = toolbox or builtin_tools()
    tool = toolbox.find(name)
    return await toolbox.call(tool, tool.parse(arguments), Job(), "job-1:call")
