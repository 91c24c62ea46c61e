"""The HTTP server, and what it tells systemd from the first request to the last."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, MutableMapping
from types import FrameType

import uvicorn

from common.aio import cancel
from common.errors import SettingsError
from common.jobs.queue_stats import QueueReader, combine_readings
from common.process.host import is_loopback
from common.process.systemd import Watchdog
from common.text import plural
from gateway.state import GatewayState

#: Where systemd's descriptors begin (sd_listen_fds(3)).
FIRST_FD = 3
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def inherited_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets that LISTEN_FDS promises to this process; none where it promises none.

    The variables are taken out, so that no child thinks they were meant for it.
    """
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()):
        return []
    if not count.isdecimal():
        raise SettingsError(f"LISTEN_FDS={count!r}: must be the number of sockets handed over")
    return [_adopt(FIRST_FD + number) for number in range(int(count))]


def _adopt(fd: int) -> socket.socket:
    fault = "is no socket"
    try:
        os.set_inheritable(fd, False)
        adopted = socket.socket(fileno=fd)
    except OSError as error:
        raise SettingsError(f"LISTEN_FDS: descriptor {fd} {fault}: {error.strerror}") from None
    if adopted.family not in _FAMILIES or adopted.type != socket.SOCK_STREAM:
        fault = "is no stream socket; the socket unit needs ListenStream="
    elif not adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        fault = "does not listen; the socket unit needs Accept=no"
    else:
        adopted.setblocking(False)
        return adopted
    adopted.detach()  # not ours to close
    raise SettingsError(f"LISTEN_FDS: descriptor {fd} {fault}")


def beyond_loopback(sockets: Iterable[socket.socket]) -> bool:
    """Whether any of them can be reached from another machine."""
    return any(
        listening.family != socket.AF_UNIX and not is_loopback(listening.getsockname()[0])
        for listening in sockets
    )


def socket_url(listening: socket.socket) -> str:
    """A socket as people would write its address."""
    if listening.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(listening.getsockname())}"
    host, port = listening.getsockname()[:2]
    return (
        f"http://[{host}]:{port}"
        if listening.family == socket.AF_INET6
        else f"http://{host}:{port}"
    )


log = logging.getLogger(__name__)

#: Turns of the loop until a connection that was just accepted is known to the server.
ACCEPTING_TURNS = 3


class GatewayServer(uvicorn.Server):
    """Says when it is ready and when it stops, and lets nobody down whom it has let in."""

    def __init__(self, config: uvicorn.Config, state: Callable[[], GatewayState]) -> None:
        """`state` is asked for once the app has started."""
        super().__init__(config)
        self._state = state
        self._watchdog: Watchdog | None = None
        self._watching: asyncio.Task[None] | None = None
        self._serving = False

    def on_stop_signal(self, signum: int, frame: FrameType | None) -> None:
        """A signal that comes before the server listens to signals itself, or afterwards.

        Before, it is only noted: to leave from here would tear a half-made loop apart.
        Afterwards, it is the server's own repetition of what has ended it.
        """
        self.should_exit = True
        if self._serving:
            sys.exit(0)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, unless the end came before the beginning."""
        self._serving = True
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
            log.info("listening on %s, which systemd keeps open", socket_url(handed_over))
        self._watchdog = gateway_watchdog(self._state())
        self._watching = asyncio.create_task(self._watchdog.run())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, answer what was accepted, and end."""
        for server in self.servers:
            server.close()
        if self._watchdog is not None and self._watching is not None:
            self._watchdog.notify_stopping()
            await cancel(self._watching)  # its client is closed with the app
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets=sockets)


def gateway_watchdog(state: GatewayState) -> Watchdog:
    """Looks after a gateway: `5 streams, 3 jobs in work, 12 waiting`."""

    async def look() -> str:
        group = state.settings.worker_group
        found = combine_readings(
            await state.lines.ask(
                lambda line: QueueReader(line.keys.queue, group).count(line.client)
            )
        )
        return f"{plural(found.pending or 0, 'job')} in work, {found.waiting or 0} waiting"

    return Watchdog(lambda: plural(state.hub.clients, "stream"), look)
