"""Pages of lists: what a request may ask for, and cursors that stay where they are."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Query

from common import codec
from common.contracts.webhooks import LETTER_CURSOR_PREFIX
from common.contracts.workflow import (
    EVENT_CURSOR_PREFIX,
    JOB_CURSOR_PREFIX,
    JOB_ID_PREFIX,
    RESULT_CURSOR_PREFIX,
    WorkflowError,
)
from common.workflow.reader import MOST_PER_PAGE
from common.workflow.records import JobPlace, Page
from gateway.workflow.envelope import WorkflowProblem
from gateway.workflow.models import PageView

#: Nothing of ours is longer.
MOST_OFFSET: Final = 10_000_000
#: No entry of a stream is so old, and Redis does not even want to be asked.
_OLDEST: Final = (0, 0)
_NUMBER: Final = re.compile(r"\A(0|[1-9][0-9]{0,14})\Z")
_PLACE: Final = re.compile(r"\A([1-9][0-9]{0,14})_([0-9]{8}_[0-9]{3,15})(?:_([1-9][0-9]{0,7}))?\Z")

Limit = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="Most entries in the answer.")]
Offset = Annotated[
    int, Query(ge=0, le=MOST_OFFSET, description="How many to pass over; not with `cursor`.")
]
Cursor = Annotated[
    str | None, Query(max_length=64, description="`next_cursor` of the page before.")
]


def after_item(cursor: str | None, offset: int) -> int:
    """The number behind `res_…`; 0 without a cursor."""
    return _after(RESULT_CURSOR_PREFIX, cursor, offset)


def after_event(cursor: str | None, offset: int) -> int:
    """The number behind `evt_…`; 0 without a cursor."""
    return _after(EVENT_CURSOR_PREFIX, cursor, offset)


def before_job(cursor: str | None, offset: int) -> JobPlace | None:
    """The place behind `job_…`."""
    rest = _rest(JOB_CURSOR_PREFIX, cursor, offset)
    if rest is None:
        return None
    match = _PLACE.match(rest)
    if match is None:
        raise _invalid(JOB_CURSOR_PREFIX)
    return JobPlace(int(match[1]), JOB_ID_PREFIX + match[2], int(match[3] or 0))


def before_letter(cursor: str | None, offset: int) -> str | None:
    """The letter's id behind `dlq_…`."""
    rest = _rest(LETTER_CURSOR_PREFIX, cursor, offset)
    if rest is not None and (codec.stream_id(rest) or _OLDEST) == _OLDEST:
        raise _invalid(LETTER_CURSOR_PREFIX)
    return rest


def item_cursor(seq: int) -> str:
    """A page of results ends with this item."""
    return f"{RESULT_CURSOR_PREFIX}{seq}"


def event_cursor(seq: int) -> str:
    """A page of events ends with this one."""
    return f"{EVENT_CURSOR_PREFIX}{seq}"


def job_cursor(place: JobPlace) -> str:
    """A page of jobs ends here."""
    cursor = f"{JOB_CURSOR_PREFIX}{place.ms}_{place.job_id.removeprefix(JOB_ID_PREFIX)}"
    return f"{cursor}_{place.offset}" if place.offset else cursor


def items_page(page: Page) -> PageView:
    """A page of results as answers describe it."""
    return _view(page, item_cursor(page.last))


def events_page(page: Page) -> PageView:
    """A page of events as answers describe it."""
    return _view(page, event_cursor(page.last))


def _view(page: Page, cursor: str) -> PageView:
    return PageView(
        count=page.count,
        has_more=page.has_more,
        next_cursor=cursor if page.has_more else None,
        total=page.total,
    )


def _after(prefix: str, cursor: str | None, offset: int) -> int:
    rest = _rest(prefix, cursor, offset)
    if rest is None:
        return 0
    if not _NUMBER.match(rest):
        raise _invalid(prefix)
    return int(rest)


def _rest(prefix: str, cursor: str | None, offset: int) -> str | None:
    if cursor is None:
        return None
    if not cursor.startswith(prefix):
        raise _invalid(prefix)
    if offset:
        raise WorkflowProblem(
            400,
            WorkflowError.PAGINATION_CONFLICT,
            "A cursor says where to begin; leave out the offset.",
            "offset",
        )
    return cursor[len(prefix) :]


def _invalid(prefix: str) -> WorkflowProblem:
    return WorkflowProblem(
        400,
        WorkflowError.INVALID_CURSOR,
        f"This is no cursor of this list. Pass `next_cursor` of the page before ({prefix}…), or "
        "none to begin at the beginning.",
        "cursor",
    )
