"""Sends one delivery to its receiver, and to nobody else; says what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from common.aio import wait_for
from common.features.workflows.webhooks.hosts import (
    AllowedHosts,
    IpAddress,
    WebhookRefused,
    WebhookTarget,
    check_url,
)
from worker.execution.concurrency import call_in_thread
from worker.features.http_errors import parse_retry_after, root_cause
from worker.features.webhooks.request import request_headers

if TYPE_CHECKING:
    import httpx2

#: Looks a name up; tests have one of their own.
Resolver = Callable[[str, int], Awaitable[Sequence[IpAddress]]]


async def resolve(host: str, port: int) -> Sequence[IpAddress]:
    """Every address of a name, in the system's order; raises OSError.

    In a thread of its own, since a name server that keeps silent would hold up a pool's.
    """
    found = await call_in_thread(
        socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
    )
    # The scope of a link-local address is of no use: they are not connected to.
    texts = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
    return [ipaddress.ip_address(text) for text in texts]


async def resolve_allowed(
    target: WebhookTarget, allowed: AllowedHosts, look_up: Resolver = resolve
) -> Sequence[IpAddress]:
    """Where to connect: asked once an attempt, and every answer must be allowed, so that no name
    can lead elsewhere between the check and the connection. Raises OSError or WebhookRefused."""
    if target.address is not None:
        found: Sequence[IpAddress] = (target.address,)
    else:
        found = await look_up(target.host, target.port)
    allowed.check(target.host, found)
    return found


#: What is read of an answer, so that its sender is not cut short; nobody looks at it.
MOST_ANSWER_BYTES: Final = 4096
#: How long that may take.
DRAIN_TIMEOUT_S: Final = 1.0
#: Addresses of one name that are tried.
MOST_ADDRESSES: Final = 3
#: Longest wait that a receiver may ask for, before the cap of the settings.
MOST_RETRY_AFTER_S: Final = 86_400.0
_TOO_MANY_REQUESTS: Final = 429
#: What a connection hears that the unit's IPAddressDeny= stands in the way of.
_FIREWALL_ERRORS: Final = (os.strerror(errno.EPERM), os.strerror(errno.EACCES))
_FIREWALL_HINT: Final = ": a firewall, or IPAddressDeny= of this worker's unit, keeps it from there"


class DeliveryResult(NamedTuple):
    """What came of one attempt."""

    #: Of the answer; None where there was none.
    status: int | None
    #: Empty for a success.
    error: str = ""
    #: Whether it may go better later.
    retryable: bool = False
    #: Seconds that the receiver asks for.
    retry_after_s: float | None = None
    #: Whether time ran out: the receiver holds up whoever waits for it.
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return not self.error


class Sender:
    """Opens a connection for each delivery: those to one address need not be for one name."""

    def __init__(
        self,
        allowed: AllowedHosts,
        secret: bytes,
        timeout_s: float,
        *,
        look_up: Resolver = resolve,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._allowed = allowed
        self._secret = secret
        self._timeout_s = timeout_s
        self._look_up = look_up
        self._tls = tls
        self._clock = clock
        self._client: httpx2.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def send(self, url: str, body: bytes) -> DeliveryResult:
        """One attempt, from the look at the URL to the answer, within the time it may take."""
        heard: list[DeliveryResult] = []
        try:
            target = check_url(url, self._allowed)
            await self._open()
            return await wait_for(self._timeout_s, self._deliver(target, body, heard))
        except WebhookRefused as error:
            return DeliveryResult(None, str(error))
        except asyncio.TimeoutError:
            if heard:  # only the rest of the answer is late
                return heard[0]
            words = f"no answer within {self._timeout_s:g} s"
            return DeliveryResult(None, words, retryable=True, timed_out=True)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _deliver(
        self, target: WebhookTarget, body: bytes, heard: list[DeliveryResult]
    ) -> DeliveryResult:
        try:
            addresses = await resolve_allowed(target, self._allowed, self._look_up)
        except (OSError, UnicodeError) as error:
            words = f"{target.host} has no address: {root_cause(error) or error}"
            return DeliveryResult(None, words, retryable=True)
        return await self._ask(target, addresses[:MOST_ADDRESSES], body, heard)

    async def _ask(
        self,
        target: WebhookTarget,
        addresses: Sequence[IpAddress],
        body: bytes,
        heard: list[DeliveryResult],
    ) -> DeliveryResult:
        """The first address that takes the connection; what it answers is the answer."""
        import httpx2

        client = await self._open()
        failed = DeliveryResult(None, f"{target.host} has no address", retryable=True)
        for number, address in enumerate(addresses, 1):
            # The last one has all the time that is left.
            connect_s = None if number == len(addresses) else self._timeout_s / len(addresses)
            headers = request_headers(body, self._secret, int(self._clock()))
            # The certificate must be the name's, although the connection goes to an address.
            extensions = {} if target.address else {"sni_hostname": target.host}
            try:
                async with client.stream(
                    "POST",
                    target.url_with_address(address),
                    content=body,
                    headers={"Host": target.authority, **headers},
                    timeout=httpx2.Timeout(None, connect=connect_s),
                    extensions=extensions,
                ) as response:
                    heard.append(
                        result_for_status(response.status_code, response.headers.get("retry-after"))
                    )
                    await _drain_response(response)
                    return heard[0]
            except httpx2.ConnectTimeout:
                words = f"{address} takes no connection"
                failed = DeliveryResult(None, words, retryable=True, timed_out=True)
            except httpx2.ConnectError as error:
                failed = DeliveryResult(None, _error_text(error), retryable=True)
            except httpx2.TransportError as error:
                return DeliveryResult(None, _error_text(error), retryable=True)
            except (httpx2.InvalidURL, ValueError) as error:
                return DeliveryResult(None, f"no request can be made of the URL: {error}")
        return failed

    async def _open(self) -> httpx2.AsyncClient:
        """The client. To make it takes long, which is not the first receiver's fault."""
        async with self._opening:
            if self._client is None:
                self._client = await call_in_thread(_new_client, self._tls)
        assert self._client is not None
        return self._client


def _new_client(tls: Callable[[], ssl.SSLContext]) -> httpx2.AsyncClient:
    import httpx2

    # It would write a line a request, with the whole URL.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(
        verify=tls(),
        trust_env=False,  # no proxy stands between the check and the connection
        http2=False,
        follow_redirects=False,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )


def result_for_status(status: int, retry_after: str | None = None) -> DeliveryResult:
    """What a status means: only 429 and 5xx may go better later."""
    if 200 <= status < 300:
        return DeliveryResult(status)
    if 300 <= status < 400:
        return DeliveryResult(status, f"HTTP {status}: redirects are not followed")
    retryable = status == _TOO_MANY_REQUESTS or status >= 500
    asked_s = parse_retry_after(retry_after, MOST_RETRY_AFTER_S) if retryable else None
    return DeliveryResult(status, f"HTTP {status}", retryable, asked_s)


async def _drain_response(response: httpx2.Response) -> None:
    """As much as a decent answer has. The status has decided; whatever happens now, it stands."""
    import httpx2

    async def read() -> None:
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                return

    with contextlib.suppress(asyncio.TimeoutError, httpx2.TransportError):
        await asyncio.wait_for(read(), DRAIN_TIMEOUT_S)


def _error_text(error: Exception) -> str:
    words = (root_cause(error) or str(error) or type(error).__name__)[:200]
    return f"{words}{_FIREWALL_HINT}" if words in _FIREWALL_ERRORS else words
