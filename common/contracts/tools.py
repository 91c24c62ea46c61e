"""Names of tools and agents: members of their events and results, error kinds, how a run ends."""

from __future__ import annotations

from enum import Enum
from typing import Final

#: Tools whose names begin so are Sluice's own: no client may ask for them, no user register them.
RESERVED_TOOLS: Final = ("sluice.", "workflow.", "image.")


class ToolField(str, Enum):
    """Members of the data of `tool_call` and `tool_result` events, and of results."""

    ID = "id"
    NAME = "name"
    ARGUMENTS = "arguments"
    #: Which answer of the model asked for it, from 1 on; absent in a `tool` job.
    ROUND = "round"
    ATTEMPT = "attempt"
    #: What came of it: one of the two.
    OUTPUT = "output"
    ERROR = "error"
    MS = "ms"
    #: There, and true, where the output was too long.
    TRUNCATED = "truncated"
    #: There, and true, where nothing was called.
    DRY_RUN = "dry_run"


class ToolKind(str, Enum):
    """Kinds of errors that have to do with tools."""

    #: There is none of that name, or not for this caller.
    UNKNOWN = "unknown_tool"
    ARGUMENTS = "tool_arguments_invalid"
    TIMEOUT = "tool_timeout"
    FAILED = "tool_failed"
    #: It belongs to a server that is not there just now.
    UNAVAILABLE = "tool_unavailable"
    #: A worker died during the call, and it may not be made twice.
    OUTCOME_UNKNOWN = "tool_outcome_unknown"
    #: The model was told so: it has made this very call before.
    REPEATED = "tool_call_repeated"
    #: The model was told so: it may make no more calls.
    TOO_MANY = "too_many_tool_calls"


class AgentEnd(str, Enum):
    """`finish_reason` of an agent that did not come to an end by itself."""

    MAX_ROUNDS = "max_rounds"
    MAX_CALLS = "max_calls"
    MAX_TIME = "max_time"
    #: The model kept making the same call.
    TOOL_LOOP = "tool_loop"


class McpState(str, Enum):
    """Whether an MCP server can be called."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"
