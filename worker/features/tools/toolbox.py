"""The tools that jobs may use: built-in, user-defined, and those of MCP servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from sluice.common.contracts.models import RESERVED_TOOLS, ToolOrigin
from sluice.common.errors import SettingsError
from sluice.worker.execution.concurrency import Cancelable
from sluice.worker.features.tools.call import ToolOutput, limit_output, run_tool
from sluice.worker.features.tools.errors import (
    ToolFailed,
    ToolUnavailable,
    UnknownTool,
    UnusableOutput,
)
from sluice.worker.features.tools.tool import Call, Tool, ToolFunction, make_tool, wire_name

#: Special values of TOOLS: all tools, or none.
ALL, NONE = "all", "none"
TIMEOUT_S = 10.0
OUTPUT_BYTES = 8192


class ToolSource(Protocol):
    """A changing set of tools from elsewhere, with a common prefix."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The known tools by full name."""

    @property
    def unavailable_reason(self) -> str:
        """Why the list of tools may be incomplete; empty if it is complete."""


class CallingJob(Cancelable, Protocol):
    """The job as a call needs it."""

    job_id: str
    tenant: str


class OfferedTool(NamedTuple):
    """An available tool, and where it comes from."""

    tool: Tool
    origin: ToolOrigin
    #: Name of its MCP server; empty for other tools.
    server: str = ""


class ToolBox:
    """Tools by name. TOOLS and the caller's key decide which of them a job may use."""

    def __init__(
        self,
        selection: str = ALL,
        timeout_s: float = TIMEOUT_S,
        output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: dict[str, ToolSource] = {}
        self._built_in: set[str] = set()
        self.configure(selection, timeout_s, output_bytes)

    def configure(self, selection: str, timeout_s: float, output_bytes: int) -> None:
        """Set the available tools (TOOLS), and the defaults of timeout and output size."""
        self._timeout_s = timeout_s
        self._output_bytes = output_bytes
        names = [name.strip() for name in selection.split(",") if name.strip()]
        #: None for all tools.
        self._selected: frozenset[str] | None = frozenset(names)
        if names == [ALL]:
            self._selected = None
        elif names == [NONE]:
            self._selected = frozenset()

    # -- registration -----------------------------------------------------------------------------

    def add(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: dict[str, Any] | None = None,
        timeout_s: float | None = None,
        output_bytes: int | None = None,
        repeatable: bool = False,
        takes_key: bool = False,
    ) -> None:
        """Register `function(call, arguments)` as a tool; replaces one with the same name.

        Name and description default to the function's; the arguments are a pydantic model, or
        described by `parameters` (JSON Schema). If a worker dies during a call, only a tool that is
        `repeatable`, or that handles `call.key` (`takes_key`), is called again.
        """
        self.put(
            make_tool(
                function,
                name=name,
                description=description,
                parameters=parameters,
                timeout_s=timeout_s,
                output_bytes=output_bytes,
                repeatable=repeatable,
                takes_key=takes_key,
            )
        )

    def tool(self, **options: Any) -> Callable[[ToolFunction], ToolFunction]:
        def register(function: ToolFunction) -> ToolFunction:
            self.add(function, **options)
            return function

        return register

    def put(self, tool: Tool, *, built_in: bool = False) -> None:
        """Register a tool that was built elsewhere."""
        self._check_name(tool.name)
        self._tools[tool.name] = tool
        (self._built_in.add if built_in else self._built_in.discard)(tool.name)

    def _check_name(self, name: str) -> None:
        if name.startswith(RESERVED_TOOLS):
            raise ValueError(f"{name}: this prefix is reserved; choose another name")
        for other in self._tools:
            if wire_name(other) == wire_name(name) and other != name:
                raise ValueError(f"{name} and {other} have the same name in model requests")

    def add_source(self, name: str, source: ToolSource) -> None:
        """Take tools called `name.…` from `source`."""
        self._sources[name] = source

    def check(self) -> None:
        """Raise SettingsError if TOOLS names an unknown tool that no source may provide either."""
        for name in sorted(self._selected or ()):
            if name not in self._tools and self._source_of(name) is None:
                raise SettingsError(
                    f"TOOLS names {name!r}, which does not exist; available: "
                    f"{_join_names(self._all_names())}, {ALL} and {NONE}"
                )

    def names(self, allowed: Collection[str] | None = None) -> list[str]:
        """Tools for a caller restricted to `allowed`; None for no restriction."""
        return sorted(name for name in self._all_names() if self._is_allowed(name, allowed))

    def offered(self) -> list[OfferedTool]:
        """The available tools by name, and where they come from."""
        found = []
        for name in dict.fromkeys(self.names()):
            source = self._source_of(name)
            if name in self._tools:
                origin = ToolOrigin.BUILT_IN if name in self._built_in else ToolOrigin.CUSTOM
                found.append(OfferedTool(self._tools[name], origin))
            elif source is not None:
                server = name.partition(".")[0]
                found.append(OfferedTool(source.tools[name], ToolOrigin.MCP, server))
        return found

    def find(self, name: str, allowed: Collection[str] | None = None) -> Tool:
        """Find a tool. Raises UnknownTool if it does not exist or is not allowed."""
        if self._is_allowed(name, allowed):
            tool = self._tools.get(name)
            source = self._source_of(name)
            if tool is None and source is not None:
                tool = source.tools.get(name)
                if tool is None and source.unavailable_reason:
                    raise ToolUnavailable(f"{name} is unavailable: {source.unavailable_reason}")
            if tool is not None:
                return tool
        raise UnknownTool(
            f"there is no tool {name[:100]!r} for this job; available: "
            f"{_join_names(self.names(allowed))}"
        )

    # -- calls ------------------------------------------------------------------------------------

    def timeout_s(self, tool: Tool) -> float:
        """Timeout of a call."""
        return self._timeout_s if tool.timeout_s is None else tool.timeout_s

    def output_bytes(self, tool: Tool) -> int:
        """Limit of the output."""
        return self._output_bytes if tool.output_bytes is None else tool.output_bytes

    async def call(
        self,
        tool: Tool,
        arguments: Any,
        job: CallingJob,
        key: str,
        *,
        most_s: float | None = None,
        most_bytes: int | None = None,
    ) -> ToolOutput:
        """Call a tool with parsed arguments; raises what `run_tool` raises, or UnusableOutput."""
        timeout_s = self.timeout_s(tool)
        if most_s is not None:
            timeout_s = max(min(timeout_s, most_s), 0.0)
        call = Call(job.job_id, key, job.tenant, time.monotonic() + timeout_s)
        value = await run_tool(tool, arguments, call, timeout_s, job)
        size = self.output_bytes(tool)
        try:
            return limit_output(value, size if most_bytes is None else min(size, most_bytes))
        except ToolFailed as error:
            raise UnusableOutput(str(error)) from error

    # -- access -----------------------------------------------------------------------------------

    def _is_allowed(self, name: str, allowed: Collection[str] | None) -> bool:
        if self._selected is not None and name not in self._selected:
            return False
        return allowed is None or name in allowed

    def _source_of(self, name: str) -> ToolSource | None:
        return self._sources.get(name.partition(".")[0]) if "." in name else None

    def _all_names(self) -> Iterable[str]:
        yield from self._tools
        for source in self._sources.values():
            yield from source.tools


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
