"""Hears which running jobs are to be canceled, and whether the queue is paused."""

from __future__ import annotations

import logging
from collections.abc import Callable

from common import codec
from common.subscription import stay_subscribed
from common.wire import Commander

log = logging.getLogger(__name__)


class Control:
    """Listens on the control channel; what is missed there, a renewal tells."""

    def __init__(
        self,
        channel: str,
        cancel: Callable[[str], None],
        renew_now: Callable[[], None],
        paused: str | None = None,
    ) -> None:
        self._channel = channel
        self._paused = paused
        self._cancel = cancel
        self._renew_now = renew_now
        #: Of other lanes, which have the same channel: they hear what this one does.
        self.lanes: list[Control] = []
        #: What to do where the queue may be paused, or go on.
        self.on_pause: Callable[[], None] = lambda: None

    def heard(self, message: bytes) -> None:
        """A job's id: it is to be canceled, by whoever runs it. Or the name of the key that says
        whether the queue is paused: that has changed."""
        said = codec.text(message)
        if said == self._paused:
            self.on_pause()
        else:
            self._cancel(said)
            for lane in self.lanes:
                lane._cancel(said)

    async def run(self, listening: Commander) -> None:
        """Listen until canceled, on a connection that hands its messages to `heard`."""
        await stay_subscribed(
            listening,
            self._channel,
            self._subscribed,
            "cancellations are seen with the next renewal meanwhile",
        )

    def _subscribed(self) -> None:
        self._renew_now()
        for lane in self.lanes:
            lane._renew_now()
        self.on_pause()
