"""Follows an event stream across reconnections, and joins the text of its messages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from sluice.api.jobs import GONE, HEARTBEAT, HELLO, RUNNING, SHUTDOWN, Event
from sluice.errors import SluiceError
from sluice.transport.request import EVENT_STREAM, Request, Response, build_request
from sluice.transport.retry import RECONNECT_FOR_S, Backoff, is_retryable
from sluice.transport.sse import Message

#: Read timeout of a stream in seconds; the gateway sends heartbeats more often than this.
SILENCE_S = 60.0
#: HTTP status of a stream without further events.
NO_CONTENT = 204
#: Frames of the protocol, not passed on to users.
_PROTOCOL_FRAMES = (HELLO, SHUTDOWN, HEARTBEAT)
Notify = Callable[[str], None]


class EventStream:
    """The state of one event stream: delivers every event once and in order across reconnections.

    `end_types` are the event types that end the stream; without them a 204 response ends it.
    `ordered` means that ids only increase, so events repeated after a reconnection are dropped.
    `notify` is called with a message when the connection is lost.
    """

    def __init__(
        self,
        path: str,
        *,
        after: str | None = None,
        end_types: tuple[str, ...] = (),
        ordered: bool = True,
        notify: Notify | None = None,
        reconnect_for_s: float = RECONNECT_FOR_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self.last_id = after or ""
        self._end_types = end_types
        self._ordered = ordered
        self._notify = notify or (lambda text: None)
        self._reconnect_for_s = reconnect_for_s
        self._clock = clock
        self._backoff = Backoff()
        self._lost_at: float | None = None
        #: True once no more events will follow.
        self.ended = False

    def request(self) -> Request[Response]:
        """The request that opens the stream, or resumes it after the last event."""
        headers = {"Accept": EVENT_STREAM, "Cache-Control": "no-cache"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        return build_request("GET", self._path, lambda response: response, headers=headers)

    def accept(self, message: Message) -> bool:
        """Process a message; returns True if it is a new event to deliver."""
        self._lost_at = None
        if message.id:
            if self._ordered and not _is_after(message.id, self.last_id):
                return False
            self.last_id = message.id
            self._backoff.reset()
        if message.event in self._end_types or message.event == GONE:
            self.ended = True
        return message.event not in _PROTOCOL_FRAMES

    def pause_s(self, error: SluiceError | None, retry_s: float | None) -> float:
        """Seconds until the next connection attempt; raises the error if there is none.

        `retry_s` is the pause that the gateway requested in the stream.
        """
        if error is None:  # closed normally: maximum stream age reached, or gateway shutdown
            return self._backoff.pause_s(retry_s)
        if not is_retryable(error):
            raise error
        # Only an event resets the back-off. If the gateway drops the client after each `hello`
        # frame, the pauses keep growing.
        pause_s = self._backoff.pause_s(error.retry_after_s)
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
            self._notify(f"{error}; reconnecting")
        elif now + pause_s - self._lost_at > self._reconnect_for_s:
            raise error
        return pause_s


def parse_event(message: Message) -> Event:
    """The event in a message. Data that is not JSON is kept as text."""
    content: Any
    try:
        content = json.loads(message.data)
    except ValueError:
        content = {"data": message.data}
    fields: Mapping[str, Any] = content if isinstance(content, dict) else {"data": content}
    kind, ts, step = fields.get("type"), fields.get("ts"), fields.get("step")
    return Event(
        id=message.id,
        type=kind if isinstance(kind, str) else message.event,
        ts=ts if isinstance(ts, int) else 0,
        step=step if isinstance(step, str) else "",
        # Image and dashboard streams send their data without an envelope.
        data=fields.get("data", fields),
        raw=fields,
    )


class TextJoiner:
    """Joins the text of the `message` events of the last round of the last attempt."""

    def __init__(self) -> None:
        self._attempt_and_round: tuple[int, int] = (0, 0)
        self._pieces: list[str] = []

    def add(self, event: Event) -> None:
        """Append the text of an event, if it has any."""
        if event.type == RUNNING:
            self._pieces = []
        if not event.text:
            return
        attempt = _number(event.data, "attempt", self._attempt_and_round[0])
        current = attempt, _number(event.data, "round", 1)
        if current != self._attempt_and_round:
            self._attempt_and_round, self._pieces = current, []
        self._pieces.append(event.text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)


def _number(data: Mapping[str, Any], name: str, default: int) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else default


def _is_after(new: str, old: str) -> bool:
    """Compare Redis stream ids. Ids of another format count as new."""
    try:
        return _numbers(new) > _numbers(old)
    except ValueError:
        return True


def _numbers(event_id: str) -> tuple[int, int]:
    ms, _, sequence = event_id.partition("-")
    return int(ms), int(sequence or 0)
