"""The HTTP server, and its notifications to systemd."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, MutableMapping
from types import FrameType

import uvicorn

from sluice.common.aio import cancel
from sluice.common.errors import SettingsError
from sluice.common.jobs.queue_stats import QueueReader, combine_readings
from sluice.common.process.host import is_loopback
from sluice.common.process.systemd import Watchdog
from sluice.common.text import plural
from sluice.gateway.state import GatewayState

#: The first descriptor that systemd passes (sd_listen_fds(3)).
FIRST_FD = 3
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def inherited_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets that systemd passed to this process (LISTEN_FDS).

    The variables are removed from the environment, so that child processes do not use them.
    """
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()):
        return []
    if not count.isdecimal():
        raise SettingsError(f"LISTEN_FDS={count!r}: must be the number of passed sockets")
    return [_adopt(FIRST_FD + number) for number in range(int(count))]


def _adopt(fd: int) -> socket.socket:
    fault = "is not a socket"
    try:
        os.set_inheritable(fd, False)
        adopted = socket.socket(fileno=fd)
    except OSError as error:
        raise SettingsError(f"LISTEN_FDS: descriptor {fd} {fault}: {error.strerror}") from None
    if adopted.family not in _FAMILIES or adopted.type != socket.SOCK_STREAM:
        fault = "is not a stream socket; the socket unit needs ListenStream="
    elif not adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        fault = "does not listen; the socket unit needs Accept=no"
    else:
        adopted.setblocking(False)
        return adopted
    adopted.detach()  # systemd's to close
    raise SettingsError(f"LISTEN_FDS: descriptor {fd} {fault}")


def beyond_loopback(sockets: Iterable[socket.socket]) -> bool:
    """True if one of the sockets can be reached from another machine."""
    return any(
        listening.family != socket.AF_UNIX and not is_loopback(listening.getsockname()[0])
        for listening in sockets
    )


def socket_url(listening: socket.socket) -> str:
    """The URL of a socket."""
    if listening.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(listening.getsockname())}"
    host, port = listening.getsockname()[:2]
    return (
        f"http://[{host}]:{port}"
        if listening.family == socket.AF_INET6
        else f"http://{host}:{port}"
    )


log = logging.getLogger(__name__)

#: Iterations of the event loop until the server knows a newly accepted connection.
ACCEPTING_TURNS = 3


class GatewayServer(uvicorn.Server):
    """Notifies systemd of start and stop, and answers all accepted requests before it ends."""

    def __init__(self, config: uvicorn.Config, state: Callable[[], GatewayState]) -> None:
        """`state` is called once the app has started."""
        super().__init__(config)
        self._state = state
        self._watchdog: Watchdog | None = None
        self._watching: asyncio.Task[None] | None = None
        self._serving = False

    def on_stop_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal before the server handles signals itself, or afterwards.

        Before, it is only recorded: to exit here would interrupt the start of the event loop.
        Afterwards, uvicorn raises the signal again that stopped it.
        """
        self.should_exit = True
        if self._serving:
            sys.exit(0)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, unless a stop signal has arrived already."""
        self._serving = True
        if not self.should_exit:
            await super().serve(sockets=sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then notify systemd.

        The start does not wait for Redis. While Redis is unreachable, requests get 503 and the
        status reports it.
        """
        await super().startup(sockets=sockets)
        for handed_over in sockets or ():
            log.info("listening on %s (socket of systemd)", socket_url(handed_over))
        self._watchdog = gateway_watchdog(self._state())
        self._watching = asyncio.create_task(self._watchdog.run())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, answer accepted requests, and end."""
        for server in self.servers:
            server.close()
        if self._watchdog is not None and self._watching is not None:
            self._watchdog.notify_stopping()
            await cancel(self._watching)  # its client is closed with the app
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        await super().shutdown(sockets=sockets)


def gateway_watchdog(state: GatewayState) -> Watchdog:
    """The watchdog of a gateway. Its status line: `5 streams, 3 jobs in progress, 12 waiting`."""

    async def status() -> str:
        group = state.settings.worker_group
        found = combine_readings(
            await state.lines.ask(
                lambda line: QueueReader(line.keys.queue, group).count(line.client)
            )
        )
        return f"{plural(found.pending or 0, 'job')} in progress, {found.waiting or 0} waiting"

    return Watchdog(lambda: plural(state.hub.clients, "stream"), status)
