"""Names of the model tasks: their events, where a served model is announced, error kinds."""

from __future__ import annotations

from enum import Enum
from typing import Final


class HandlerEventType:
    """Types of events that the shipped handlers write beside `message`."""

    REASONING: Final = "reasoning"
    TOOL_CALL: Final = "tool_call"
    TOOL_RESULT: Final = "tool_result"
    CITATION: Final = "citation"
    PROGRESS: Final = "progress"
    USAGE: Final = "usage"


class ModelStep:
    """Who wrote such an event."""

    CHAT: Final = "worker.chat"
    PLAN: Final = "worker.plan"
    CODE: Final = "worker.code"
    TOOL: Final = "worker.tool"
    RAG: Final = "worker.rag"
    EMBED: Final = "worker.embed"


class DeltaField:
    """Members of the data of a `message` or `reasoning` event that carries a piece of an answer."""

    DELTA: Final = "delta"
    #: How many such events the attempt has written, this one included.
    N: Final = "n"
    ATTEMPT: Final = "attempt"
    #: Which answer of the attempt it belongs to, from the second on: the model was asked again.
    ROUND: Final = "round"


class ProgressField:
    """Members of the data of a `progress` event: how much of the work is done, of how much.

    Or, where a handler says so itself, how many percent, and in words.
    """

    DONE: Final = "done"
    TOTAL: Final = "total"
    ATTEMPT: Final = "attempt"
    PERCENT: Final = "percent"
    MESSAGE: Final = "message"


class ModelErrorKind:
    """Kinds of job errors that have to do with a model."""

    #: None is configured, or what is there cannot do what was asked.
    NO_MODEL: Final = "no_model"
    #: It is down or loading; the job waits, at no cost.
    UNAVAILABLE: Final = "model_unavailable"
    CONNECT_TIMEOUT: Final = "model_connect_timeout"
    FIRST_TOKEN_TIMEOUT: Final = "model_first_token_timeout"
    IDLE_TIMEOUT: Final = "model_idle_timeout"
    TOTAL_TIMEOUT: Final = "model_total_timeout"
    #: It refused the request, and would again.
    REFUSED: Final = "model_refused"
    #: It failed before it had said anything.
    FAILED: Final = "model_failed"
    #: It broke off in the middle of an answer.
    BROKEN: Final = "model_stream_broken"
    #: What it said makes no sense: no JSON, no choices, not the schema that was asked for.
    GARBAGE: Final = "model_answer_invalid"


#: Texts of one `embed` job.
EMBED_MAX_TEXTS: Final = 256

#: Below SLUICE_DATA_DIR: where `sluice model serve` says what it serves, as JSON.
MODEL_FILE: Final = "model.json"


class ModelFileField:
    """Members of that file."""

    URL: Final = "url"
    MODEL: Final = "model"
    PID: Final = "pid"


#: Tools whose names begin so are Sluice's own: no client may ask for them, no user register them.
RESERVED_TOOLS: Final = ("sluice.", "workflow.", "image.")


class ToolField:
    """Members of the data of `tool_call` and `tool_result` events, and of results."""

    ID: Final = "id"
    NAME: Final = "name"
    ARGUMENTS: Final = "arguments"
    #: Which answer of the model asked for it, from 1 on; absent in a `tool` job.
    ROUND: Final = "round"
    ATTEMPT: Final = "attempt"
    #: What came of it: one of the two.
    OUTPUT: Final = "output"
    ERROR: Final = "error"
    MS: Final = "ms"
    #: There, and true, where the output was too long.
    TRUNCATED: Final = "truncated"
    #: There, and true, where nothing was called.
    DRY_RUN: Final = "dry_run"


class ToolErrorKind:
    """Kinds of errors that have to do with tools."""

    #: There is none of that name, or not for this caller.
    UNKNOWN: Final = "unknown_tool"
    ARGUMENTS: Final = "tool_arguments_invalid"
    TIMEOUT: Final = "tool_timeout"
    FAILED: Final = "tool_failed"
    #: It belongs to a server that is not there just now.
    UNAVAILABLE: Final = "tool_unavailable"
    #: A worker died during the call, and it may not be made twice.
    OUTCOME_UNKNOWN: Final = "tool_outcome_unknown"
    #: The model was told so: it has made this very call before.
    REPEATED: Final = "tool_call_repeated"
    #: The model was told so: it may make no more calls.
    TOO_MANY: Final = "too_many_tool_calls"


class AgentFinishReason:
    """`finish_reason` of an agent that did not come to an end by itself."""

    MAX_ROUNDS: Final = "max_rounds"
    MAX_CALLS: Final = "max_calls"
    MAX_TIME: Final = "max_time"
    #: The model kept making the same call.
    TOOL_LOOP: Final = "tool_loop"


class McpState(str, Enum):
    """Whether an MCP server can be called."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"
