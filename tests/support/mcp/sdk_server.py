"""An MCP server written with the `mcp` package: `python sdk_server.py [PORT]`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("small", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(structured_output=False)
def picture() -> list[object]:
    """A text and a picture."""
    return ["see:", Image(data=b"\x89PNG", format="png")]


@server.tool()
async def wait(path: str) -> str:
    """Writes to a file that it waits, and when it is canceled; waits long."""
    Path(path).write_text("waiting")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(path).write_text("canceled")
        raise
    return "over"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
