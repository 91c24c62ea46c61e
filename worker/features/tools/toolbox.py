"""The tools that jobs may use: the shipped ones, the user's, those of MCP servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from common.contracts.models import RESERVED_TOOLS
from common.errors import SettingsError
from worker.execution.concurrency import Cancelable
from worker.features.tools.call import ToolOutput, limit_output, run_tool
from worker.features.tools.errors import ToolFailed, ToolUnavailable, UnknownTool, UnusableOutput
from worker.features.tools.tool import Call, Tool, ToolFunction, make_tool, wire_name

#: TOOLS: every tool, or none.
ALL, NONE = "all", "none"
TIMEOUT_S = 10.0
OUTPUT_BYTES = 8192


class ToolSource(Protocol):
    """Tools of somebody else, whose names begin with the source's; they come and go."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Those that are known, by their whole name."""

    @property
    def unavailable_reason(self) -> str:
        """Why there may be others that are not known yet; empty where there are none."""


class CallingJob(Cancelable, Protocol):
    """What a call has to know of its job."""

    job_id: str
    tenant: str


class ToolBox:
    """Tools by name. Which of them exist for a job is up to TOOLS and to the caller's key."""

    def __init__(
        self,
        selection: str = ALL,
        timeout_s: float = TIMEOUT_S,
        output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: dict[str, ToolSource] = {}
        self.configure(selection, timeout_s, output_bytes)

    def configure(self, selection: str, timeout_s: float, output_bytes: int) -> None:
        """Which tools there are (TOOLS), and the terms of those that have none of their own."""
        self._timeout_s = timeout_s
        self._output_bytes = output_bytes
        names = [name.strip() for name in selection.split(",") if name.strip()]
        #: None for all of them.
        self._selected: frozenset[str] | None = frozenset(names)
        if names == [ALL]:
            self._selected = None
        elif names == [NONE]:
            self._selected = frozenset()

    # -- what there is -----------------------------------------------------------------------------

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
        """Let `function(call, arguments)` be a tool; a later one of that name replaces it.

        Its name and description are the function's own, unless given; its arguments a pydantic
        model, or what `parameters` (JSON Schema) says. A worker may die during a call: only a tool
        that is `repeatable`, or remembers `call.key` (`takes_key`), is called again then.
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

    def tool(self, **terms: Any) -> Callable[[ToolFunction], ToolFunction]:
        def register(function: ToolFunction) -> ToolFunction:
            self.add(function, **terms)
            return function

        return register

    def put(self, tool: Tool) -> None:
        """Add a tool that was made elsewhere."""
        self._check_name(tool.name)
        self._tools[tool.name] = tool

    def _check_name(self, name: str) -> None:
        if name.startswith(RESERVED_TOOLS):
            raise ValueError(f"{name}: such names are Sluice's own; call it something else")
        for other in self._tools:
            if wire_name(other) == wire_name(name) and other != name:
                raise ValueError(f"{name} and {other} are the same to a model")

    def add_source(self, name: str, source: ToolSource) -> None:
        """Let tools called `name.…` come from `source`."""
        self._sources[name] = source

    def check(self) -> None:
        """TOOLS may name only what there is, or what a source may still bring."""
        for name in sorted(self._selected or ()):
            if name not in self._tools and self._source_of(name) is None:
                raise SettingsError(
                    f"TOOLS names {name!r}, and there is no such tool; there are "
                    f"{_join_names(self._all_names())}, {ALL} and {NONE}"
                )

    def names(self, allowed: Collection[str] | None = None) -> list[str]:
        """Tools that exist for a caller who may use those of `allowed`; None for any."""
        return sorted(name for name in self._all_names() if self._is_allowed(name, allowed))

    def find(self, name: str, allowed: Collection[str] | None = None) -> Tool:
        """A tool; UnknownTool where there is none, or none for this caller."""
        if self._is_allowed(name, allowed):
            tool = self._tools.get(name)
            source = self._source_of(name)
            if tool is None and source is not None:
                tool = source.tools.get(name)
                if tool is None and source.unavailable_reason:
                    raise ToolUnavailable(
                        f"{name} is not there just now: {source.unavailable_reason}"
                    )
            if tool is not None:
                return tool
        raise UnknownTool(
            f"there is no tool {name[:100]!r} for this job; there are "
            f"{_join_names(self.names(allowed))}"
        )

    # -- using it ----------------------------------------------------------------------------------

    def timeout_s(self, tool: Tool) -> float:
        """Seconds that a call may take."""
        return self._timeout_s if tool.timeout_s is None else tool.timeout_s

    def output_bytes(self, tool: Tool) -> int:
        """Bytes of output that are kept."""
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
        """Call a tool with arguments that it has parsed; raises what `perform` does."""
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

    # -- who may what ------------------------------------------------------------------------------

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
