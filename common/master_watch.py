"""Leaves a master that Sentinels have replaced, although it still answers.

For seconds after a failover an old master that lives knows nothing of it, and takes writes that
will be lost. Sentinels know at once, and are asked now and then while connections are open.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from common.addresses import Address, Node
from common.whereabouts import TROUBLE, Whereabouts, learn, whereabouts

log = logging.getLogger(__name__)

#: Between two questions of a process.
WATCH_S = 1.0


class Watched(Protocol):
    """An open connection, and the server it went to."""

    node: Node | None

    @property
    def is_connected(self) -> bool:
        """Whether it is open still."""

    def hang_up(self) -> None:
        """Close it, whoever uses it: they find the connection lost, and come back."""


class _Watch:
    """One Sentinel set's, in one event loop; it ends with the last connection."""

    def __init__(self, known: Whereabouts) -> None:
        self._known = known
        self._open: WeakSet[Watched] = WeakSet()
        self._running: asyncio.Task[None] | None = None

    def add(self, connection: Watched) -> None:
        self._open.add(connection)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for connection in [each for each in self._open if not each.is_connected]:
                self._open.discard(connection)
            if not self._open:
                return
            try:
                await learn(self._known)
                master = self._known.found(0)
            except TROUBLE:
                continue  # nobody says otherwise
            self._leave_all_but(master)

    def _leave_all_but(self, master: Node) -> None:
        left = [connection for connection in self._open if connection.node != master]
        for connection in left:
            self._open.discard(connection)
            connection.hang_up()
        if left:
            log.warning("redis: the master is %s now; %d connections left", master, len(left))


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Address, _Watch]] = WeakKeyDictionary()


def watch(address: Address, connection: Watched) -> None:
    """Have a connection hung up when Sentinels name another master than the one it went to."""
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    whole = address.whole
    if whole not in watches:
        watches[whole] = _Watch(whereabouts(whole))
    watches[whole].add(connection)
