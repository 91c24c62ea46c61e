"""Listens for cancel requests of running jobs, and for changes of the queue's pause state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluice.common import codec
from sluice.common.redis.pipelined import CommandClient, keep_subscribed

OnMessage = Callable[[bytes], None]


class ControlTarget(NamedTuple):
    """The running jobs of one queue, as the listener sees them."""

    #: Cancels the job with this id, if it runs in this queue.
    cancel: Callable[[str], None]
    #: Renews all leases now; a renewal also reports requested cancels.
    renew_now: Callable[[], None]


class ControlListener:
    """Subscribes to the control channel of a queue. All lanes of the queue are its targets.

    A message is the id of a job to cancel, or the name of the key that holds the pause state.
    Messages published while the connection is down are made up for by renewing all leases.
    """

    def __init__(
        self,
        connect: Callable[[OnMessage], CommandClient],
        channel: str,
        targets: Sequence[ControlTarget],
        paused_key: str | None = None,
        on_pause_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` opens a connection that passes published messages to its argument."""
        self._connection = connect(self.on_message)
        self._channel = channel
        self._targets = tuple(targets)
        self._paused_key = paused_key
        self._on_pause_change = on_pause_change

    def on_message(self, message: bytes) -> None:
        text = codec.decode_text(message)
        if text == self._paused_key:
            self._on_pause_change()
            return
        for target in self._targets:
            target.cancel(text)

    async def run(self) -> None:
        """Stay subscribed until canceled."""
        await keep_subscribed(
            self._connection,
            self._channel,
            self._on_subscribed,
            "cancels arrive with the next lease renewal until the connection is back",
        )

    async def close(self) -> None:
        await self._connection.aclose()

    def _on_subscribed(self) -> None:
        for target in self._targets:
            target.renew_now()
        self._on_pause_change()
