"""Streaming responses: headers, content negotiation, resume position and send timeout."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.requests import Request
from starlette.types import Message, Send

from sluice.common.codec import parse_stream_id
from sluice.common.contracts.jobs import FrameType
from sluice.gateway.auth.callers import Caller
from sluice.gateway.events.base import BaseSubscriber
from sluice.gateway.events.frames import RETRY_MS, Frame, Source, notice_frame
from sluice.gateway.events.hub import EventHub
from sluice.gateway.events.subscriber import Position
from sluice.gateway.http.problems import Problem
from sluice.gateway.state import GatewayState

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
#: Seconds after which a client that accepts no bytes is disconnected; it may resume.
SEND_TIMEOUT_S: Final = 30.0
#: Keeps proxies from buffering or caching a stream.
STREAM_HEADERS: Final = {
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}
_REFUSED = re.compile(r"q\s*=\s*0(\.0*)?\Z")


class EventStreamResponse(EventSourceResponse):
    """A response of event frames. Counts clients disconnected because they stopped reading."""

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
    """Yield the hello frame, then every event after a position, while the caller is authorised.

    `hub`: the hub to subscribe to; that of jobs by default.
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
    """Yield the hello frame, then the frames of a subscriber, while the caller is authorised."""
    # Opened only when the first bytes are requested, because the client may already have left.
    watch = opening()
    try:
        yield hello.sse if media_type == SSE else hello.ndjson
        while batch := await watch.next_batch():
            if caller.may_lapse and not await state.access.callers.is_still_valid(caller):
                return  # revoked or expired meanwhile; a new request gets a 401
            if media_type == SSE:
                data = b"".join([frame.sse for frame in batch])
            else:
                data = b"".join([frame.ndjson for frame in batch])
            state.hub.metrics.record_sent(batch, len(data), live=watch.live, numbered=numbered)
            yield data
    finally:
        watch.close()


def hello_frame(state: GatewayState, facts: dict[str, Any]) -> Frame:
    """First frame of a stream: facts about the job, and the heartbeat interval."""
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
    """SSE unless `Accept` lists NDJSON first; raises a 406 if the client accepts neither."""
    accept = request.headers.get("accept", "")
    for part in accept.split(",") if accept.strip() else ["*/*"]:
        accepted, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if any(_REFUSED.match(parameter) for parameter in parameters):
            continue
        if accepted in (SSE, "*/*", "text/*"):
            return SSE
        if accepted in (NDJSON, "application/jsonl", "application/*"):
            return NDJSON
    raise Problem(406, "not_acceptable", f"Events are available as {SSE} or {NDJSON}.")


def resume_position(request: Request) -> Position | None:
    """Position after which the client resumes; None for a new stream."""
    raw = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    if not raw:
        return None
    position = parse_stream_id(raw)
    if position is None:
        raise Problem(
            400, "invalid_last_event_id", "Last-Event-ID must be the id of an event, such as 17-0."
        )
    return position
