"""Feeds systemd's watchdog for as long as this process does its work, and tells how it goes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable

#: Whoever should listen is given so long to take a message; then it is dropped.
SEND_TIMEOUT_S = 0.5
_SOCKET = "NOTIFY_SOCKET"
READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


def enabled() -> bool:
    return bool(os.environ.get(_SOCKET))


def send(*assignments: str) -> bool:
    """Send some of the assignments below in one message; whether it went out. Never raises."""
    address = os.environ.get(_SOCKET, "")
    if not address:
        return False
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(SEND_TIMEOUT_S)
            line.connect(address)
            line.sendall("\n".join(assignments).encode(errors="replace"))
    except (OSError, ValueError):
        return False
    return True


def status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"


def extend_timeout(seconds: float) -> str:
    """Starting or stopping goes on for at least so long; to be said again before it is over."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def watchdog_s() -> float | None:
    """Within how many seconds systemd wants to hear from us each time; None if it does not."""
    try:
        period_s = int(os.environ["WATCHDOG_USEC"]) / 1e6
        ours = int(os.environ.get("WATCHDOG_PID", os.getpid())) == os.getpid()
    except (KeyError, ValueError):
        return None
    return period_s if ours and period_s > 0 else None


log = logging.getLogger(__name__)

#: How often the status is told where there is no watchdog to feed.
STATUS_INTERVAL_S = 10.0
#: How long the first answer of Redis is waited for before we say that we are ready without it.
FIRST_CHECK_TIMEOUT_S = 2.0
#: When there was trouble, the next look comes sooner by this factor.
TROUBLE_SPEEDUP = 5


class Watchdog:
    """Looks around three times per watchdog period, and feeds it only if all is well:

    - the event loop turns: this very task is on it, and it was not woken too late;
    - Redis answered within the period. One that never has since we started is waited for: there
      a restart was just tried, and another would cure nothing;
    - `trouble` has nothing to tell, such as leases that nobody renews.

    Whoever is not fed is ended by systemd, and started anew.
    """

    def __init__(
        self,
        busy: Callable[[], str],
        look: Callable[[], Awaitable[str]],
        trouble: Callable[[], str] = lambda: "",
        *,
        period_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        send: Callable[..., object] = send,
        peer: str = "Redis",
    ) -> None:
        """The status is what `busy` knows of this process and what `look` hears from Redis, or
        from `peer` else. That may be anything, as long as it is cheap and fails without an answer.
        """
        self._busy = busy
        self._look = look
        self._trouble = trouble
        self._period_s = period_s if period_s is not None else watchdog_s()
        self._every_s = self._period_s / 3 if self._period_s else STATUS_INTERVAL_S
        self._clock = clock
        self._send = send
        self._peer = peer
        self._answered_at: float | None = None
        self._cause = ""
        self._stopping = False

    async def run(self) -> None:
        """Say that we are ready, then go on until canceled. Without systemd: nothing."""
        if not enabled():
            return
        await self.run_once(first=True)
        while True:
            wait_s = self._every_s / TROUBLE_SPEEDUP if self._cause else self._every_s
            due = self._clock() + wait_s
            await asyncio.sleep(wait_s)
            await self.run_once(late_s=self._clock() - due)

    async def run_once(self, *, late_s: float = 0.0, first: bool = False) -> bool:
        """Look around and tell; whether the watchdog was fed."""
        heard = await self._ask(FIRST_CHECK_TIMEOUT_S if first else self._every_s / 2)
        cause = self._find_cause(late_s)
        self._log_change(cause)
        self._cause = cause
        message = [self._status(heard)]
        if first:
            message.append(READY)
        if self._stopping:
            message.append(extend_timeout(2 * self._every_s))
        fed = self._period_s is not None and not cause
        if fed:
            message.append(WATCHDOG)
        self._send(*message)
        return fed

    def notify_stopping(self) -> None:
        """We were told to stop and may need a while: from now on, time is asked for."""
        self._stopping = True
        more_time = extend_timeout(2 * self._every_s)
        self._send(STOPPING, self._status(), more_time)

    def _status(self, heard: str = "") -> str:
        parts = ", ".join(part for part in (self._busy(), heard) if part)
        return status(f"stopping: {parts}" if self._stopping else parts)

    async def _ask(self, patience_s: float) -> str:
        try:
            looking = asyncio.ensure_future(self._look())
            looking.add_done_callback(_consume_exception)
            heard = await asyncio.wait_for(looking, patience_s)
        except Exception as error:  # whatever it is, we have no answer
            log.debug("nothing heard from %s: %r", self._peer, error)
            return f"{self._peer} does not answer"
        self._answered_at = self._clock()
        return heard

    def _find_cause(self, late_s: float) -> str:
        if late_s > self._every_s / 2:
            return f"the event loop came {late_s:.1f} s late"
        if self._answered_at is not None and self._period_s:
            silent_s = self._clock() - self._answered_at
            if silent_s > self._period_s:
                return f"{self._peer} has not answered for {silent_s:.0f} s"
        return self._trouble()

    def _log_change(self, cause: str) -> None:
        if cause and not self._cause:
            log.error("the watchdog is not fed: %s", cause)
        elif self._cause and not cause:
            log.info("all is well again: the watchdog is fed")


def _consume_exception(looking: asyncio.Future[str]) -> None:
    """Take note of how it ended: who stops in the middle of it asks no more, and asyncio would
    complain of an error that nobody has seen."""
    if not looking.cancelled():
        looking.exception()
