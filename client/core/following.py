"""Where one is in a stream of events, and how one gets back into it when it was lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from client.core.calls import EVENT_STREAM, Answer, Call, call
from client.core.models import GAP, GONE, HEARTBEAT, HELLO, SHUTDOWN, Event
from client.core.retrying import PATIENCE_S, Backoff, may_pass
from client.core.sse import Message
from client.errors import SluiceError

#: A stream says something at least this often, if only that it is still there.
SILENCE_S = 60.0
NOTHING_MORE = 204
#: Frames that are between the gateway and us.
_PRIVATE = (HELLO, SHUTDOWN, HEARTBEAT)
Say = Callable[[str], None]


class Following:
    """One stream, over as many connections as it takes: every event once, in order.

    `ends` are types of events after which nothing comes; without them the gateway's 204 is the end.
    `ordered`: ids only grow, so that what comes again after a reconnection is known.
    """

    def __init__(
        self,
        path: str,
        *,
        after: str | None = None,
        ends: tuple[str, ...] = (),
        ordered: bool = True,
        say: Say | None = None,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self.last_id = after or ""
        self._ends = ends
        self._ordered = ordered
        self._say = say or (lambda text: None)
        self._patience_s = patience_s
        self._clock = clock
        self._backoff = Backoff()
        #: Since when there was no sign of life.
        self._lost_at: float | None = None
        #: Nothing more will come.
        self.ended = False

    def call(self) -> Call[Answer]:
        """The request that opens it, or opens it again."""
        headers = {"Accept": EVENT_STREAM, "Cache-Control": "no-cache"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        return call("GET", self._path, lambda answer: answer, headers=headers)

    def took(self, message: Message) -> bool:
        """Whether a message is news for whoever follows."""
        self._lost_at = None
        if message.id:
            if self._ordered and not _is_after(message.id, self.last_id):
                return False
            self.last_id = message.id
            self._backoff.reset()
        if message.event in self._ends or message.event == GONE:
            self.ended = True
        return message.event not in _PRIVATE

    def pause_s(self, error: SluiceError | None, retry_s: float | None) -> float:
        """How long to wait before it is opened again; raises the error when it is time to."""
        if error is None:  # in good order: the stream's age, or a gateway that stops
            return self._backoff.pause_s(retry_s)
        if not may_pass(error):
            raise error
        # Pauses keep growing while there is only a greeting: who is always dropped after it comes
        # back less and less often.
        pause_s = self._backoff.pause_s(error.retry_after_s)
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
            self._say(f"{error}; coming back")
        elif now + pause_s - self._lost_at > self._patience_s:
            raise error
        return pause_s


def event_of(message: Message) -> Event:
    """A message as the event that it is; what is no JSON stays text."""
    told: Any
    try:
        told = json.loads(message.data)
    except ValueError:
        told = {"data": message.data}
    fields: Mapping[str, Any] = told if isinstance(told, dict) else {"data": told}
    kind, ts, step = fields.get("type"), fields.get("ts"), fields.get("step")
    return Event(
        id=message.id,
        type=kind if isinstance(kind, str) else message.event,
        ts=ts if isinstance(ts, int) else 0,
        step=step if isinstance(step, str) else "",
        # Streams of images and of the page have their data bare.
        data=fields.get("data", fields),
        raw=fields,
    )


class Joining:
    """Pieces of an answer, joined: those of the last attempt's last round."""

    def __init__(self) -> None:
        self._place: tuple[int, int] = (0, 0)
        self._pieces: list[str] = []
        #: Some of it was trimmed before we could read it.
        self.torn = False

    def add(self, event: Event) -> None:
        """Take an event's piece, if it has one."""
        if event.type == GAP:
            self.torn = True
        if event.type == "running":
            self._pieces, self.torn = [], False
        if not event.text:
            return
        data = event.data
        place = _number(data, "attempt", self._place[0]), _number(data, "round", 1)
        if place != self._place:
            self._place, self._pieces = place, []
        self._pieces.append(event.text)

    @property
    def text(self) -> str:
        """What there is by now."""
        return "".join(self._pieces)


def _number(data: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else otherwise


def _is_after(new: str, old: str) -> bool:
    """By the numbers of stream ids; ids of another kind are always news."""
    try:
        return _numbers(new) > _numbers(old)
    except ValueError:
        return True


def _numbers(text: str) -> tuple[int, int]:
    ms, _, sequence = text.partition("-")
    return int(ms), int(sequence or 0)
