"""The wire format of events, for every kind of stream."""

from __future__ import annotations

import json

import orjson
import pytest

from sluice.common.contracts.images import Stage
from sluice.common.features.images.types import ImageProgress
from sluice.gateway.dashboard.activity import feed
from sluice.gateway.events.frames import Frame, entry_frame, notice_frame
from sluice.gateway.features.bullmq import events as bullmq
from sluice.gateway.features.images.events import in_progress_state
from sluice.gateway.features.openai.chat.stream import sse

#: Python and many SSE clients end a line at each of them, unless JSON escapes it.
TEXT = "a\u2028b\u2029c\x85d “quoted” é\n"
RAW = orjson.dumps({"text": TEXT})
ID = b"1760000000000-0"


def of_job() -> Frame:
    flat = [b"type", b"message", b"ts", b"1", b"step", TEXT.encode(), b"data", RAW]
    return entry_frame([ID, flat])


def of_bullmq() -> Frame:
    return bullmq.frame([ID, [b"event", b"progress", b"jobId", TEXT.encode(), b"data", RAW]])


def of_image() -> Frame:
    return in_progress_state("7", ImageProgress(Stage.QUEUED, "5", TEXT)).frame("1-queued")


def of_dashboard() -> Frame:
    return feed._frame("", feed.FeedEvent.JOBS, RAW)


def of_notice() -> Frame:
    return notice_frame("hello", {"text": TEXT})


FRAMES = (of_job, of_bullmq, of_image, of_dashboard, of_notice)


@pytest.mark.parametrize("make", FRAMES, ids=lambda each: each.__name__)
def test_no_character_of_the_data_ends_a_line(make: object) -> None:
    assert callable(make)
    frame: Frame = make()
    sse_lines = frame.sse.decode().splitlines()
    assert sse_lines == frame.sse.decode().split("\n")[:-1]
    [data] = [line for line in sse_lines if line.startswith("data: ")]
    [line] = frame.ndjson.decode().splitlines()
    assert TEXT in str_values(json.loads(data.removeprefix("data: ")))
    assert TEXT in str_values(json.loads(line))


def test_chunks_of_a_chat_completion_are_one_line() -> None:
    event = sse(orjson.dumps(TEXT).decode()).decode()
    assert len(event.splitlines()) == 2
    assert json.loads(event.removeprefix("data: ")) == TEXT


def test_the_ndjson_line_of_an_event_begins_with_its_id() -> None:
    line = json.loads(of_job().ndjson)
    assert list(line) == ["id", "type", "ts", "step", "data"]
    assert line["id"] == ID.decode()


def str_values(value: object) -> list[object]:
    """All strings in a JSON value."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in str_values(each)]
    return [value]
