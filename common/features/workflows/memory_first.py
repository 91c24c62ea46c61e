"""The built-in workflow: from sources to a memory that `rag` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice.common.contracts.workflow.statuses import (
    MEMORY_FIRST,
    MOST_ITEMS,
    Action,
    DraftState,
    StepKind,
)
from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition

SOURCES: Final = "sources"
INDEX_EXTRACT: Final = "index_extract"
SUMMARIZE: Final = "summarize"
PROPOSALS: Final = "proposals"
REVIEW: Final = "review"
APPLY: Final = "apply"
ANALYTICS: Final = "analytics"

#: The member of a source with its type, and its values.
TYPE: Final = "type"
TEXT: Final = "text"
FILE: Final = "file"
DIRECTORY: Final = "dir"

#: Limits: sources per job, bytes of all inline texts, of one file, and of all texts.
MOST_SOURCES: Final = 200
MOST_INLINE_BYTES: Final = 2_000_000
MOST_FILE_BYTES: Final = 20_000_000
MOST_TEXT_BYTES: Final = 32_000_000
MOST_PATH_CHARS: Final = 1024
MOST_GLOB_CHARS: Final = 256
MOST_TITLE_CHARS: Final = 200
MOST_CHARSET_CHARS: Final = 40

#: Default options.
MAX_TERMS: Final = 300
SENTENCES: Final = 3
MODEL_TIMEOUT_S: Final = 30
MODEL_BUDGET_S: Final = 120
LIMIT: Final = 200
MIN_CONFIDENCE: Final = 0.5


def _options(**members: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": members, "additionalProperties": False}


def _source(kind: str, needed: tuple[str, ...], **members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_options(**{TYPE: {"const": kind}, **members}),
        "required": [TYPE, *needed],
    }


def _text(most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


_TITLE: Final = _text(MOST_TITLE_CHARS)
_PATH: Final = _text(MOST_PATH_CHARS, 1)
_CHARSET: Final = _text(MOST_CHARSET_CHARS)
_SOURCES: Final = _options(
    sources={
        "type": "array",
        "maxItems": MOST_SOURCES,
        "items": {
            "oneOf": [
                _source(TEXT, ("text",), title=_TITLE, text=_text(MOST_INLINE_BYTES)),
                _source(FILE, ("path",), path=_PATH, title=_TITLE, charset=_CHARSET),
                _source(
                    DIRECTORY,
                    ("path",),
                    path=_PATH,
                    glob=_text(MOST_GLOB_CHARS, 1),
                    charset=_CHARSET,
                ),
            ]
        },
    },
    max_source_failures=_whole(0, MOST_SOURCES),
)
_SUMMARIZE: Final = _options(
    sentences=_whole(1, 20),
    use_model={"type": "boolean"},
    model_timeout_s={"type": "number", "exclusiveMinimum": 0, "maximum": 600},
    model_budget_s={"type": "number", "minimum": 0, "maximum": 3600},
)
_PROPOSALS: Final = _options(
    limit=_whole(0, MOST_ITEMS),
    min_confidence={"type": "number", "minimum": 0, "maximum": 1},
    organize={"type": "boolean"},
)
_DECISION: Final = {
    **_options(
        id={"oneOf": [_text(64, 1), _whole(1, 10_000_000)]},
        action={"enum": [action.value for action in Action]},
        note=_text(2000),
        version=_whole(0, 2**31 - 1),
    ),
    "required": ["id", "action"],
}
_REVIEW: Final = _options(
    decisions={"type": "array", "maxItems": MOST_ITEMS, "items": _DECISION},
    finalize={"type": "boolean"},
)

DEFINITION: Final = WorkflowDefinition(
    MEMORY_FIRST,
    (
        StepDefinition(SOURCES, "s", "source", 0.10, options_schema=_SOURCES),
        StepDefinition(
            INDEX_EXTRACT,
            "x",
            "term",
            0.40,
            options_schema=_options(max_terms=_whole(1, MOST_ITEMS)),
        ),
        StepDefinition(SUMMARIZE, "sum", "summary", 0.15, options_schema=_SUMMARIZE),
        StepDefinition(PROPOSALS, "p", "proposal", 0.15, proposes=True, options_schema=_PROPOSALS),
        StepDefinition(
            REVIEW,
            "r",
            "review",
            0.05,
            kind=StepKind.REVIEW,
            reviews=PROPOSALS,
            options_schema=_REVIEW,
        ),
        StepDefinition(
            APPLY,
            "a",
            "apply",
            0.10,
            draft=DraftState.SAVING,
            settles=True,
            options_schema=_options(dry_run={"type": "boolean"}),
        ),
        StepDefinition(
            ANALYTICS, "m", "metric", 0.05, draft=DraftState.CLEAN, options_schema=_options()
        ),
    ),
    "Reads sources, proposes terms and aliases, and after a review adds them to what `rag` knows.",
)
