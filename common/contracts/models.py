"""Names of the model tasks: events, the announcement of a served model, error kinds."""

from __future__ import annotations

from enum import Enum
from typing import Final


class HandlerEventType:
    """Event types of the built-in handlers in addition to `message`."""

    REASONING: Final = "reasoning"
    TOOL_CALL: Final = "tool_call"
    TOOL_RESULT: Final = "tool_result"
    CITATION: Final = "citation"
    PROGRESS: Final = "progress"
    USAGE: Final = "usage"


class ModelStep:
    """`step` of such an event."""

    CHAT: Final = "worker.chat"
    PLAN: Final = "worker.plan"
    CODE: Final = "worker.code"
    TOOL: Final = "worker.tool"
    RAG: Final = "worker.rag"
    EMBED: Final = "worker.embed"


class DeltaField:
    """Members of the data of a `message` or `reasoning` event with a piece of a response."""

    DELTA: Final = "delta"
    #: Number of such events of the attempt so far, including this one.
    N: Final = "n"
    ATTEMPT: Final = "attempt"
    #: Which response of the attempt it belongs to, from the second one on.
    ROUND: Final = "round"


class ProgressField:
    """Members of the data of a `progress` event: units done and in total.

    A handler may report a percentage and a message instead.
    """

    DONE: Final = "done"
    TOTAL: Final = "total"
    ATTEMPT: Final = "attempt"
    PERCENT: Final = "percent"
    MESSAGE: Final = "message"


class ModelErrorKind:
    """Kinds of job errors caused by a model."""

    #: No model is configured, or it does not support the request.
    NO_MODEL: Final = "no_model"
    #: The server is down or loading; the job is postponed without using up an attempt.
    UNAVAILABLE: Final = "model_unavailable"
    CONNECT_TIMEOUT: Final = "model_connect_timeout"
    FIRST_TOKEN_TIMEOUT: Final = "model_first_token_timeout"
    IDLE_TIMEOUT: Final = "model_idle_timeout"
    TOTAL_TIMEOUT: Final = "model_total_timeout"
    #: The server rejected the request; a retry would fail too.
    REFUSED: Final = "model_refused"
    #: The server failed before the first token.
    FAILED: Final = "model_failed"
    #: The response ended in the middle.
    BROKEN: Final = "model_stream_broken"
    #: The response is invalid: not JSON, without choices, or not matching the schema.
    GARBAGE: Final = "model_answer_invalid"


#: Maximum number of texts in an `embed` job.
EMBED_MAX_TEXTS: Final = 256

#: The file below SLUICE_DATA_DIR in which `sluice model serve` announces its server (JSON).
MODEL_FILE: Final = "model.json"


class ModelFileField:
    """Members of that file."""

    URL: Final = "url"
    MODEL: Final = "model"
    PID: Final = "pid"


#: Name prefixes of internal tools: clients may not call them, users may not register them.
RESERVED_TOOLS: Final = ("sluice.", "workflow.", "image.")


class ToolField:
    """Members of the data of `tool_call` and `tool_result` events, and of results."""

    ID: Final = "id"
    NAME: Final = "name"
    ARGUMENTS: Final = "arguments"
    #: Number of the model response that requested it, from 1; absent in a `tool` job.
    ROUND: Final = "round"
    ATTEMPT: Final = "attempt"
    #: The result: one of these two.
    OUTPUT: Final = "output"
    ERROR: Final = "error"
    MS: Final = "ms"
    #: Present and true if the output was cut off.
    TRUNCATED: Final = "truncated"
    #: Present and true if nothing was called.
    DRY_RUN: Final = "dry_run"


class ToolErrorKind:
    """Kinds of errors caused by tools."""

    #: No tool of this name exists, or the caller may not use it.
    UNKNOWN: Final = "unknown_tool"
    ARGUMENTS: Final = "tool_arguments_invalid"
    TIMEOUT: Final = "tool_timeout"
    FAILED: Final = "tool_failed"
    #: The MCP server of the tool is not available.
    UNAVAILABLE: Final = "tool_unavailable"
    #: A worker died during the call, which must not be made twice.
    OUTCOME_UNKNOWN: Final = "tool_outcome_unknown"
    #: Reported to the model: it has made the same call before.
    REPEATED: Final = "tool_call_repeated"
    #: Reported to the model: it may make no more calls.
    TOO_MANY: Final = "too_many_tool_calls"


class AgentFinishReason:
    """`finish_reason` of an agent that reached a limit."""

    MAX_ROUNDS: Final = "max_rounds"
    MAX_CALLS: Final = "max_calls"
    MAX_TIME: Final = "max_time"
    #: The model repeated the same call.
    TOOL_LOOP: Final = "tool_loop"


class ToolOrigin(str, Enum):
    """Where a tool comes from."""

    BUILT_IN = "built_in"
    #: A module in WORKER_HANDLERS.
    CUSTOM = "custom"
    #: A server in MCP_SERVERS.
    MCP = "mcp"


class McpState(str, Enum):
    """Availability of an MCP server."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"
