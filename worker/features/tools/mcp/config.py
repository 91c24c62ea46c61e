"""Reads MCP_SERVERS: a JSON file that describes how to start or reach each MCP server."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sluice.common.contracts.models import RESERVED_TOOLS
from sluice.common.errors import SettingsError

#: Name of a server; its tools are called `name.tool`.
NAME = re.compile(r"\A[A-Za-z][A-Za-z0-9_-]{0,31}\Z")
#: Limit of servers; the worker's heartbeat lists all of them.
MOST_SERVERS = 64
_PACKAGE, _OLDEST = "mcp", 2
_EXAMPLE = '{"mcpServers": {"files": {"command": "mcp-files", "args": ["/srv"]}}}'


class McpServer(BaseModel):
    """One server: a command to start, or a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = Field(None, min_length=1)
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    #: Present in files written for other programs; redundant with command and url.
    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    disabled: bool = False
    #: Timeout of its tools; TOOL_TIMEOUT_S if None.
    timeout_s: float | None = Field(None, gt=0, le=3600)

    @model_validator(mode="after")
    def _one_of_two(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("url must begin with http:// or https://")
            if self.args or self.env or self.cwd is not None:
                raise ValueError("args, env and cwd belong to command, not to url")
        elif self.headers:
            raise ValueError("headers belong to url, not to command")
        return self


class _File(BaseModel):
    """The whole file; members of other programs are ignored."""

    model_config = ConfigDict(extra="ignore")

    mcpServers: dict[str, McpServer]  # noqa: N815 - the name that such files use


def load(path: str) -> dict[str, McpServer]:
    """The servers of a file by name, without disabled ones. Raises SettingsError."""
    try:
        servers = _File.model_validate_json(Path(path).read_bytes()).mcpServers
    except OSError as error:
        raise SettingsError(f"MCP_SERVERS names {path}: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        location = ".".join(map(str, problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"MCP_SERVERS names {path}: {location + ': ' if location else ''}{text}; "
            f"example: {_EXAMPLE}"
        ) from None
    if len(servers) > MOST_SERVERS:
        raise SettingsError(f"MCP_SERVERS names {path}: {MOST_SERVERS} servers at most")
    for name in servers:
        if not NAME.match(name) or f"{name}.".startswith(RESERVED_TOOLS):
            raise SettingsError(
                f"MCP_SERVERS names {path}: {name!r} is not a valid server name; use up to 32 "
                "letters, digits, - and _"
            )
    return {name: server for name, server in servers.items() if not server.disabled}


def check_package() -> None:
    """Raise SettingsError if the optional package `mcp` is missing or too old."""
    try:
        found = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    major = found.partition(".")[0]
    if not major.isdecimal() or int(major) < _OLDEST:
        raise SettingsError(
            f"MCP_SERVERS needs the package {_PACKAGE} {_OLDEST} or later, found {found}: "
            "pip install 'sluice[tools]'"
        )
