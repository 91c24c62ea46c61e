"""Notifies systemd (sd_notify): readiness, status text and the watchdog."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable

#: Seconds that sending a message may take; then it is dropped.
SEND_TIMEOUT_S = 0.5
_SOCKET = "NOTIFY_SOCKET"
READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


def enabled() -> bool:
    return bool(os.environ.get(_SOCKET))


def send(*assignments: str) -> bool:
    """Send assignments such as READY in one message; returns whether it was sent. Never raises."""
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
    """Asks systemd to allow at least this much more time; repeat it before the time is over."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def watchdog_s() -> float | None:
    """The watchdog period in seconds; None if systemd does not watch this process."""
    try:
        period_s = int(os.environ["WATCHDOG_USEC"]) / 1e6
        ours = int(os.environ.get("WATCHDOG_PID", os.getpid())) == os.getpid()
    except (KeyError, ValueError):
        return None
    return period_s if ours and period_s > 0 else None


log = logging.getLogger(__name__)

#: Seconds between two status messages without a watchdog.
STATUS_INTERVAL_S = 10.0
#: Seconds to wait for the first answer of Redis before READY is sent without it.
FIRST_CHECK_TIMEOUT_S = 2.0
#: While something is wrong, checks run more often by this factor.
TROUBLE_SPEEDUP = 5


class Watchdog:
    """Checks the process three times per watchdog period, and feeds the watchdog if all is well:

    - The event loop runs: this task runs on it, and was not resumed too late.
    - Redis answered within the period. If it never has since the process started, it is not
      required: the process was just restarted, and another restart would not help.
    - `trouble` reports nothing, such as leases that are not being renewed.

    systemd kills and restarts a process that does not feed the watchdog.
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
        """The status text is built from `busy` (this process) and `look` (Redis, or `peer`).

        `look` must be cheap, and must fail if there is no answer.
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
        """Send READY, then run until canceled. Without systemd it returns at once."""
        if not enabled():
            return
        await self.run_once(first=True)
        while True:
            wait_s = self._every_s / TROUBLE_SPEEDUP if self._cause else self._every_s
            due = self._clock() + wait_s
            await asyncio.sleep(wait_s)
            await self.run_once(late_s=self._clock() - due)

    async def run_once(self, *, late_s: float = 0.0, first: bool = False) -> bool:
        """Check once and notify systemd; returns whether the watchdog was fed."""
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
        """Report that the process is stopping, and ask for more time from now on."""
        self._stopping = True
        more_time = extend_timeout(2 * self._every_s)
        self._send(STOPPING, self._status(), more_time)

    def _status(self, heard: str = "") -> str:
        parts = ", ".join(part for part in (self._busy(), heard) if part)
        return status(f"stopping: {parts}" if self._stopping else parts)

    async def _ask(self, timeout_s: float) -> str:
        try:
            looking = asyncio.ensure_future(self._look())
            looking.add_done_callback(_consume_exception)
            heard = await asyncio.wait_for(looking, timeout_s)
        except Exception as error:  # any error means that there is no answer
            log.debug("no answer from %s: %r", self._peer, error)
            return f"{self._peer} does not answer"
        self._answered_at = self._clock()
        return heard

    def _find_cause(self, late_s: float) -> str:
        if late_s > self._every_s / 2:
            return f"the event loop was {late_s:.1f} s late"
        if self._answered_at is not None and self._period_s:
            silent_s = self._clock() - self._answered_at
            if silent_s > self._period_s:
                return f"{self._peer} has not answered for {silent_s:.0f} s"
        return self._trouble()

    def _log_change(self, cause: str) -> None:
        if cause and not self._cause:
            log.error("the watchdog is not fed: %s", cause)
        elif self._cause and not cause:
            log.info("recovered: the watchdog is fed again")


def _consume_exception(looking: asyncio.Future[str]) -> None:
    """Mark the exception as retrieved: if this task is canceled meanwhile, nothing awaits the
    check any more, and asyncio would log its error."""
    if not looking.cancelled():
        looking.exception()
