"""The HTTP server, and what it tells systemd from the first request to the last."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from common.cancellation import cancel
from common.queue_reading import QueueReader, all_together
from common.watchdog import Watchdog
from gateway import listening
from gateway.state import GatewayState

log = logging.getLogger(__name__)

#: Turns of the loop until a connection that was just accepted is known to the server.
ACCEPTING_TURNS = 3


class Server(uvicorn.Server):
    """Says when it is ready and when it stops, and lets nobody down whom it has let in."""

    def __init__(self, config: uvicorn.Config, state: Callable[[], GatewayState]) -> None:
        """`state` is asked for once the app has started."""
        super().__init__(config)
        self._state = state
        self._watchdog: Watchdog | None = None
        self._watching: asyncio.Task[None] | None = None
        self._begun = False

    def told_to_stop(self, signum: int, frame: FrameType | None) -> None:
        """A signal that comes before the server listens to signals itself, or afterwards.

        Before, it is only noted: to leave from here would tear a half-made loop apart.
        Afterwards, it is the server's own repetition of what has ended it.
        """
        self.should_exit = True
        if self._begun:
            sys.exit(0)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, unless the end came before the beginning."""
        self._begun = True
        if not self.should_exit:
            await super().serve(sockets=sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so.

        Whether Redis answers too is told in the status, and not waited for: while it is away,
        requests are better answered with 503 than left waiting, and a start that hangs helps
        nobody.
        """
        await super().startup(sockets=sockets)
        for handed_over in sockets or ():
            log.info("listening on %s, which systemd keeps open", listening.name(handed_over))
        self._watchdog = gateway_watchdog(self._state())
        self._watching = asyncio.create_task(self._watchdog.run())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, answer what was accepted, and end."""
        for server in self.servers:
            server.close()
        if self._watchdog is not None and self._watching is not None:
            self._watchdog.stopping()
            await cancel(self._watching)  # its client is closed with the app
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets=sockets)


def gateway_watchdog(state: GatewayState) -> Watchdog:
    """Looks after a gateway: `5 streams, 3 jobs in work, 12 waiting`."""

    async def look() -> str:
        group = state.settings.worker_group
        found = all_together(
            await state.lines.ask(
                lambda line: QueueReader(line.keys.queue, group).count(line.client)
            )
        )
        return f"{found.pending or 0} jobs in work, {found.waiting or 0} waiting"

    return Watchdog(lambda: f"{state.hub.clients} streams", look)
