"""Hears which running jobs are to be canceled."""

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
        self, channel: str, cancel: Callable[[str], None], renew_now: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._cancel = cancel
        self._renew_now = renew_now

    def heard(self, message: bytes) -> None:
        """A job's id: it is to be canceled, by whoever runs it."""
        self._cancel(codec.text(message))

    async def run(self, listening: Commander) -> None:
        """Listen until canceled, on a connection that hands its messages to `heard`."""
        await stay_subscribed(
            listening,
            self._channel,
            self._renew_now,
            "cancellations are seen with the next renewal meanwhile",
        )
