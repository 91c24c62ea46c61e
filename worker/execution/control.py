"""Hears which running jobs are to be canceled, and whether the queue is paused."""

from __future__ import annotations

import logging
from collections.abc import Callable

from common import codec
from common.redis.pipelined import CommandClient, keep_subscribed

log = logging.getLogger(__name__)


class ControlListener:
    """Listens on the control channel; what is missed there, a renewal tells."""

    def __init__(
        self,
        channel: str,
        cancel: Callable[[str], None],
        renew_now: Callable[[], None],
        paused_key: str | None = None,
    ) -> None:
        self._channel = channel
        self._paused_key = paused_key
        self._cancel = cancel
        self._renew_now = renew_now
        #: Of other lanes, which have the same channel: they hear what this one does.
        self.lane_listeners: list[ControlListener] = []
        #: What to do where the queue may be paused, or go on.
        self.on_pause: Callable[[], None] = lambda: None

    def on_message(self, message: bytes) -> None:
        """A job's id: it is to be canceled, by whoever runs it. Or the name of the key that says
        whether the queue is paused: that has changed."""
        text = codec.decode_text(message)
        if text == self._paused_key:
            self.on_pause()
        else:
            self._cancel(text)
            for lane in self.lane_listeners:
                lane._cancel(text)

    async def run(self, listening: CommandClient) -> None:
        """Listen until canceled, on a connection that hands its messages to `heard`."""
        await keep_subscribed(
            listening,
            self._channel,
            self._subscribed,
            "cancellations are seen with the next renewal meanwhile",
        )

    def _subscribed(self) -> None:
        self._renew_now()
        for lane in self.lane_listeners:
            lane._renew_now()
        self.on_pause()
