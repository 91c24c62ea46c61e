"""From a receiver's name to addresses that a delivery may connect to."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from common.webhook_hosts import Address, AllowedHosts, WebhookTarget
from worker.threads import call_in_thread

#: Looks a name up; tests have one of their own.
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Every address of a name, in the system's order; raises OSError.

    In a thread of its own, since a name server that keeps silent would hold up a pool's.
    """
    found = await call_in_thread(
        socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
    )
    # The scope of a link-local address is of no use: they are not connected to.
    texts = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
    return [ipaddress.ip_address(text) for text in texts]


async def addresses_of(
    target: WebhookTarget, allowed: AllowedHosts, look_up: Resolve = resolve
) -> Sequence[Address]:
    """Where to connect: asked once an attempt, and every answer must be allowed, so that no name
    can lead elsewhere between the check and the connection. Raises OSError or WebhookRefused."""
    if target.address is not None:
        found: Sequence[Address] = (target.address,)
    else:
        found = await look_up(target.host, target.port)
    allowed.check(target.host, found)
    return found
