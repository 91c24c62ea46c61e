"""MCP servers with random answers: tools are listed or ignored, and calls have declared errors."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.worker.features.tools.errors import OutcomeUnknown, ToolFailed, ToolUnavailable
from sluice.worker.features.tools.mcp import protocol
from sluice.worker.features.tools.mcp.config import McpServer
from sluice.worker.features.tools.mcp.connection import McpConnection
from sluice.worker.features.tools.tool import LONGEST_DESCRIPTION, NAME, Call
from tests.support.servers import missing

#: One test process imports mcp, not all of them.
pytestmark = pytest.mark.xdist_group("mcp")

USUAL = settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TIMEOUT_S = 10.0
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=9),
    st.sampled_from(["object", "http://127.0.0.1:1/", "a" * 5000, "\0", "\u2028", "#/$defs/a"]),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
SCHEMAS = st.one_of(
    st.just({"type": "object"}),
    st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.text(max_size=5), ANYTHING, max_size=2),
            "required": ANYTHING,
            "$ref": LEAVES,
            "pattern": st.just("(a+)+$"),
            "$defs": ANYTHING,
        },
    ),
    ANYTHING,
)
TOOLS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["add", "a/b", "", "a" * 99, "x\ny"]) | LEAVES,
        "inputSchema": SCHEMAS,
    },
    optional={
        "description": LEAVES,
        "annotations": ANYTHING | st.just({"readOnlyHint": True}),
        "outputSchema": SCHEMAS,
    },
)
PARTS = st.one_of(
    ANYTHING,
    st.fixed_dictionaries({"type": st.just("text"), "text": LEAVES}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image", "audio", "resource", "resource_link", "odd"])},
        optional={"data": LEAVES, "mimeType": LEAVES, "resource": ANYTHING, "uri": LEAVES},
    ),
)
#: A message whose result is no object is no valid message, so it answers no request.
OBJECTS = st.dictionaries(st.text(max_size=9), ANYTHING, max_size=3)
RESULTS = OBJECTS | st.fixed_dictionaries(
    {"content": st.lists(PARTS, max_size=3)},
    optional={"isError": LEAVES, "structuredContent": ANYTHING, "_meta": ANYTHING},
)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mcp") is None:
        missing("the package mcp is not installed")


def scripted(answers: dict[str, Any]) -> Any:
    """A transport to a server with this result for each method."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        to_client, from_server = anyio.create_memory_object_stream[Any](9)
        to_server, from_client = anyio.create_memory_object_stream[Any](9)

        async def serve() -> None:
            async for message in from_client:
                request = message.message
                if not isinstance(request, JSONRPCRequest):
                    continue
                try:
                    reply: Any = JSONRPCResponse(
                        jsonrpc="2.0", id=request.id, result=answers[request.method]
                    )
                except KeyError:
                    error: Any = {"code": -32601, "message": "unknown"}
                    reply = JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
                await to_client.send(SessionMessage(reply))

        serving = asyncio.create_task(serve())
        try:
            yield from_server, to_server
        finally:
            serving.cancel()
            for stream in (to_client, from_server, to_server, from_client):
                stream.close()

    return transport()


HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd", "version": "1"},
}


@USUAL
@given(hello=st.just(HELLO) | OBJECTS, tools=st.lists(TOOLS, max_size=3) | ANYTHING, more=LEAVES)
async def test_any_list_of_tools(
    monkeypatch: pytest.MonkeyPatch, hello: Any, tools: Any, more: Any
) -> None:
    page = {"tools": tools, "nextCursor": more}
    answers = {"initialize": hello, "tools/list": page}
    monkeypatch.setattr(protocol, "_transport", lambda server: scripted(answers))
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    connection = McpConnection("odd", McpServer(command="none"))
    running = asyncio.create_task(connection._run_once())
    settled = asyncio.create_task(connection.settled.wait())
    await asyncio.wait({running, settled}, timeout=TIMEOUT_S, return_when="FIRST_COMPLETED")
    settled.cancel()
    for name, tool in connection.tools.items():
        assert NAME.match(name)
        assert len(tool.description) <= LONGEST_DESCRIPTION
    await connection.close()
    assert isinstance(await asyncio.wait_for(running, TIMEOUT_S), str)


@USUAL
@given(result=RESULTS)
async def test_any_result_of_a_call(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    listed = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
    answers = {"initialize": HELLO, "tools/list": listed, "tools/call": result}
    monkeypatch.setattr(protocol, "_transport", lambda server: scripted(answers))
    connection = McpConnection("odd", McpServer(command="none"))
    running = asyncio.create_task(connection._run_once())
    await asyncio.wait_for(connection.settled.wait(), TIMEOUT_S)
    tool = connection.tools["odd.add"]
    try:
        await asyncio.wait_for(tool.function(Call("job", "key"), {}), TIMEOUT_S)
    except (ToolFailed, ToolUnavailable, OutcomeUnknown) as error:
        assert str(error)  # noqa: PT017
    await connection.close()
    await asyncio.wait_for(running, TIMEOUT_S)
