"""A stream of events over as many connections as it takes, and the text in its messages."""

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

#: The gateway sends something at least this often, if only a heartbeat.
SILENCE_S = 60.0
#: Status of a stream that has no more events.
NO_CONTENT = 204
#: Frames of the protocol, which users do not see.
_PROTOCOL_FRAMES = (HELLO, SHUTDOWN, HEARTBEAT)
Notify = Callable[[str], None]


class EventStream:
    """The position in one stream: every event once, in order, whatever connections break.

    `end_types` are the event types after which nothing comes; without them the gateway's 204 ends
    the stream. `ordered`: ids only grow, so events sent again after a reconnection are dropped.
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
        #: No more events will come.
        self.ended = False

    def request(self) -> Request[Response]:
        """The request that opens the stream, or opens it again."""
        headers = {"Accept": EVENT_STREAM, "Cache-Control": "no-cache"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        return build_request("GET", self._path, lambda response: response, headers=headers)

    def accept(self, message: Message) -> bool:
        """Advance by a message; whether it is a new event for the user."""
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
        """Seconds until the stream is opened again; raises the error if it is not.

        `retry_s` is the pause that the gateway asked for in the stream.
        """
        if error is None:  # closed in good order: the stream's age, or a gateway that stops
            return self._backoff.pause_s(retry_s)
        if not is_retryable(error):
            raise error
        # Only an event resets the back-off: a client that is dropped after each greeting comes
        # back less and less often.
        pause_s = self._backoff.pause_s(error.retry_after_s)
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
            self._notify(f"{error}; coming back")
        elif now + pause_s - self._lost_at > self._reconnect_for_s:
            raise error
        return pause_s


def parse_event(message: Message) -> Event:
    """The event in a message; data that is not JSON stays text."""
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
        # Streams of images and of the dashboard have their data without an envelope.
        data=fields.get("data", fields),
        raw=fields,
    )


class TextJoiner:
    """Joins the text of `message` events: those of the last round of the last attempt."""

    def __init__(self) -> None:
        self._attempt_and_round: tuple[int, int] = (0, 0)
        self._pieces: list[str] = []

    def add(self, event: Event) -> None:
        """Append the event's text, if it has any."""
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
        """The text so far."""
        return "".join(self._pieces)


def _number(data: Mapping[str, Any], name: str, default: int) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else default


def _is_after(new: str, old: str) -> bool:
    """Compares the numbers of stream ids; ids of another form are always new."""
    try:
        return _numbers(new) > _numbers(old)
    except ValueError:
        return True


def _numbers(event_id: str) -> tuple[int, int]:
    ms, _, sequence = event_id.partition("-")
    return int(ms), int(sequence or 0)
