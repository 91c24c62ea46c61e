"""Names of the model tasks: their events, where a served model is announced, error kinds."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Channel(str, Enum):
    """Types of events that the shipped handlers write beside `message`."""

    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    CITATION = "citation"
    PROGRESS = "progress"
    USAGE = "usage"


class ModelStep(str, Enum):
    """Who wrote such an event."""

    CHAT = "worker.chat"
    PLAN = "worker.plan"
    CODE = "worker.code"
    TOOL = "worker.tool"
    RAG = "worker.rag"
    EMBED = "worker.embed"


class DeltaField(str, Enum):
    """Members of the data of a `message` or `reasoning` event that carries a piece of an answer."""

    DELTA = "delta"
    #: How many such events the attempt has written, this one included.
    N = "n"
    ATTEMPT = "attempt"
    #: Which answer of the attempt it belongs to, from the second on: the model was asked again.
    ROUND = "round"


class ProgressField(str, Enum):
    """Members of the data of a `progress` event: how much of the work is done, of how much.

    Or, where a handler says so itself, how many percent, and in words.
    """

    DONE = "done"
    TOTAL = "total"
    ATTEMPT = "attempt"
    PERCENT = "percent"
    MESSAGE = "message"


class ModelKind(str, Enum):
    """Kinds of job errors that have to do with a model."""

    #: None is configured, or what is there cannot do what was asked.
    NO_MODEL = "no_model"
    #: It is down or loading; the job waits, at no cost.
    UNAVAILABLE = "model_unavailable"
    CONNECT_TIMEOUT = "model_connect_timeout"
    FIRST_TOKEN_TIMEOUT = "model_first_token_timeout"
    IDLE_TIMEOUT = "model_idle_timeout"
    TOTAL_TIMEOUT = "model_total_timeout"
    #: It refused the request, and would again.
    REFUSED = "model_refused"
    #: It failed before it had said anything.
    FAILED = "model_failed"
    #: It broke off in the middle of an answer.
    BROKEN = "model_stream_broken"
    #: What it said makes no sense: no JSON, no choices, not the schema that was asked for.
    GARBAGE = "model_answer_invalid"


#: Texts of one `embed` job.
EMBED_MAX_TEXTS: Final = 256

#: Below SLUICE_DATA_DIR: where `sluice model serve` says what it serves, as JSON.
MODEL_FILE: Final = "model.json"


class PlaceField(str, Enum):
    """Members of that file."""

    URL = "url"
    MODEL = "model"
    PID = "pid"
