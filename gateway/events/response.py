"""What all answers that go on and on have in common: headers, time limits, forms, how they end."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.types import Message, Send

from common.codec import parse_stream_id
from common.contracts.jobs import FrameType
from gateway.auth.callers import Caller
from gateway.events.base import BaseSubscriber
from gateway.events.frames import RETRY_MS, Frame, Source, notice_frame
from gateway.events.hub import EventHub
from gateway.events.subscriber import Position
from gateway.http.problems import Problem
from gateway.state import GatewayState

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
#: A client that takes no bytes for this long has gone; it may resume.
SEND_TIMEOUT_S: Final = 30.0
#: Nobody on the way may keep a stream back, or anything of it.
STREAM_HEADERS: Final = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}
_REFUSED = re.compile(r"q\s*=\s*0(\.0*)?\Z")


class EventStreamResponse(EventSourceResponse):
    """Frames as an answer. Counts the clients that were given up: they take nothing any more."""

    def __init__(
        self, hub: EventHub, frames: AsyncIterator[bytes], media_type: str, send_timeout_s: float
    ) -> None:
        super().__init__(
            frames,
            headers={**STREAM_HEADERS, "Vary": "Accept"},
            media_type=media_type,
            ping=0,
            send_timeout=send_timeout_s,
        )
        self._hub = hub

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        try:
            await super()._send_with_timeout(send, message)
        except SendTimeoutError:
            self._hub.metrics.slow_closed += 1
            raise


async def stream_events(
    state: GatewayState,
    caller: Caller,
    source: Source,
    after: Position,
    hello: Frame,
    media_type: str,
    *,
    ended: bool = False,
    hub: EventHub | None = None,
) -> AsyncIterator[bytes]:
    """The hello, then every event after a position, as long as the caller may see them.

    `hub`: another one than that of jobs.
    """
    opening = partial((hub or state.hub).subscribe, source, after, ended=ended)
    async for data in relay(state, caller, opening, hello, media_type, numbered=source.numbered):
        yield data


async def relay(
    state: GatewayState,
    caller: Caller,
    opening: Callable[[], BaseSubscriber],
    hello: Frame,
    media_type: str,
    *,
    numbered: bool,
) -> AsyncIterator[bytes]:
    """The hello, then whatever a watch brings, as long as the caller may see it."""
    # Opened only when the first bytes are asked for: a client may have left before.
    watch = opening()
    try:
        yield hello.sse if media_type == SSE else hello.ndjson
        while batch := await watch.next_batch():
            if caller.key_id and not await state.access.callers.is_still_valid(caller):
                return  # revoked meanwhile; who comes again is told so
            if media_type == SSE:
                data = b"".join([frame.sse for frame in batch])
            else:
                data = b"".join([frame.ndjson for frame in batch])
            state.hub.metrics.record_sent(batch, len(data), live=watch.live, numbered=numbered)
            yield data
    finally:
        watch.close()


def hello_frame(state: GatewayState, facts: dict[str, Any]) -> Frame:
    """The first word: what is known of the job, and how the stream behaves."""
    return notice_frame(
        FrameType.HELLO,
        {
            **facts,
            "server_ts": int(time.time() * 1000),
            "heartbeat_s": state.settings.sse_heartbeat_s,
        },
        retry_ms=RETRY_MS,
    )


def negotiate_media_type(request: Request) -> str:
    """SSE unless the client asks for NDJSON first; a client that takes neither gets a 406."""
    accept = request.headers.get("accept", "")
    for part in accept.split(",") if accept.strip() else ["*/*"]:
        wanted, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if any(_REFUSED.match(parameter) for parameter in parameters):
            continue
        if wanted in (SSE, "*/*", "text/*"):
            return SSE
        if wanted in (NDJSON, "application/jsonl", "application/*"):
            return NDJSON
    raise Problem(406, "not_acceptable", f"Events come as {SSE} or as {NDJSON}.")


def resume_position(request: Request) -> Position | None:
    """After which event the client wants to go on; None for one that has seen nothing."""
    raw = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    if not raw:
        return None
    position = parse_stream_id(raw)
    if position is None:
        raise Problem(
            400, "invalid_last_event_id", "Last-Event-ID must be the id of an event, such as 17-0."
        )
    return position
