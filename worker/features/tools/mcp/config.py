"""Reads MCP_SERVERS: a JSON file that says how each MCP server is started or reached."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.contracts.models import RESERVED_TOOLS
from common.errors import SettingsError

#: What a server may be called; its tools are called `name.tool`.
NAME = re.compile(r"\A[A-Za-z][A-Za-z0-9_-]{0,31}\Z")
#: More servers than this a worker does not tell of.
MOST_SERVERS = 64
_PACKAGE, _OLDEST = "mcp", 2
_EXAMPLE = '{"mcpServers": {"files": {"command": "mcp-files", "args": ["/srv"]}}}'


class McpServer(BaseModel):
    """One server: a command to start, or a URL to call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str | None = Field(None, min_length=1)
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    #: Files written for other programs say it; command and url say it too.
    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    disabled: bool = False
    #: Seconds its tools may take; TOOL_TIMEOUT_S unless it says.
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
    """The whole file; what else other programs keep in it is theirs."""

    model_config = ConfigDict(extra="ignore")

    mcpServers: dict[str, McpServer]  # noqa: N815 - the name that such files use


def load(path: str) -> dict[str, McpServer]:
    """The servers of a file, by name; SettingsError says what is wrong with it."""
    try:
        servers = _File.model_validate_json(Path(path).read_bytes()).mcpServers
    except OSError as error:
        raise SettingsError(f"MCP_SERVERS names {path}: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors(include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        text = fault["msg"].removeprefix("Value error, ")
        raise SettingsError(
            f"MCP_SERVERS names {path}: {place + ': ' if place else ''}{text}; write {_EXAMPLE}"
        ) from None
    if len(servers) > MOST_SERVERS:
        raise SettingsError(f"MCP_SERVERS names {path}: {MOST_SERVERS} servers at most")
    for name in servers:
        if not NAME.match(name) or f"{name}.".startswith(RESERVED_TOOLS):
            raise SettingsError(
                f"MCP_SERVERS names {path}: {name!r} is no name for a server; write up to 32 "
                "letters, digits, - and _"
            )
    return {name: server for name, server in servers.items() if not server.disabled}


def check_package() -> None:
    """The `mcp` package is an extra; SettingsError says how to get it."""
    try:
        found = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    major = found.partition(".")[0]
    if not major.isdecimal() or int(major) < _OLDEST:
        raise SettingsError(
            f"MCP_SERVERS needs the package {_PACKAGE} {_OLDEST} or later, and there is {found}: "
            "pip install 'sluice[tools]'"
        )
