"""Sends one delivery to an allowed receiver and classifies the outcome."""

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

from sluice.common.aio import wait_for
from sluice.common.features.workflows.webhooks.hosts import (
    AllowedHosts,
    IpAddress,
    WebhookRefused,
    WebhookTarget,
    check_url,
)
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.http_errors import parse_retry_after, root_cause
from sluice.worker.features.webhooks.request import request_headers

if TYPE_CHECKING:
    import httpx2

#: Resolves a host name; can be replaced in tests.
Resolver = Callable[[str, int], Awaitable[Sequence[IpAddress]]]


async def resolve(host: str, port: int) -> Sequence[IpAddress]:
    """All addresses of a name, in the system's order; raises OSError.

    Runs in its own thread, because an unresponsive name server would block a thread pool.
    """
    found = await call_in_thread(
        socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
    )
    # The scope of a link-local address is dropped: such addresses are not connected to.
    texts = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
    return [ipaddress.ip_address(text) for text in texts]


async def resolve_allowed(
    target: WebhookTarget, allowed: AllowedHosts, look_up: Resolver = resolve
) -> Sequence[IpAddress]:
    """The addresses to connect to. Raises OSError or WebhookRefused.

    Resolved once per attempt, and all addresses must be allowed, so that a name cannot change
    between check and connection (DNS rebinding).
    """
    if target.address is not None:
        found: Sequence[IpAddress] = (target.address,)
    else:
        found = await look_up(target.host, target.port)
    allowed.check(target.host, found)
    return found


#: Bytes of an answer that are read, so that the receiver can complete it; they are discarded.
MOST_ANSWER_BYTES: Final = 4096
#: Time limit of that.
DRAIN_TIMEOUT_S: Final = 1.0
#: Addresses of one name that are tried.
MOST_ADDRESSES: Final = 3
#: Longest Retry-After that is accepted, before the cap of the settings.
MOST_RETRY_AFTER_S: Final = 86_400.0
_TOO_MANY_REQUESTS: Final = 429
#: Errors of a connection that IPAddressDeny= of the systemd unit blocks.
_FIREWALL_ERRORS: Final = (os.strerror(errno.EPERM), os.strerror(errno.EACCES))
_FIREWALL_HINT: Final = ": blocked by a firewall or by IPAddressDeny= of this worker's unit"


class DeliveryResult(NamedTuple):
    """Outcome of one attempt."""

    #: HTTP status; None if there was no answer.
    status: int | None
    #: Empty on success.
    error: str = ""
    #: True if a later attempt may succeed.
    retryable: bool = False
    #: Retry-After of the receiver, in seconds.
    retry_after_s: float | None = None
    #: True if the receiver timed out; the service then slows down its host.
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return not self.error


class Sender:
    """Opens a connection per delivery, because connections to one address may be for different
    names.
    """

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
        """One attempt within the timeout, including the check of the URL."""
        results: list[DeliveryResult] = []
        try:
            target = check_url(url, self._allowed)
            await self._open()
            return await wait_for(self._timeout_s, self._deliver(target, body, results))
        except WebhookRefused as error:
            return DeliveryResult(None, str(error))
        except asyncio.TimeoutError:
            if results:  # only the rest of the answer is late
                return results[0]
            message = f"no answer within {self._timeout_s:g} s"
            return DeliveryResult(None, message, retryable=True, timed_out=True)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _deliver(
        self, target: WebhookTarget, body: bytes, results: list[DeliveryResult]
    ) -> DeliveryResult:
        try:
            addresses = await resolve_allowed(target, self._allowed, self._look_up)
        except (OSError, UnicodeError) as error:
            message = f"{target.host} has no address: {root_cause(error) or error}"
            return DeliveryResult(None, message, retryable=True)
        return await self._ask(target, addresses[:MOST_ADDRESSES], body, results)

    async def _ask(
        self,
        target: WebhookTarget,
        addresses: Sequence[IpAddress],
        body: bytes,
        results: list[DeliveryResult],
    ) -> DeliveryResult:
        """Send to the first address that accepts the connection, and return its answer."""
        import httpx2

        client = await self._open()
        failed = DeliveryResult(None, f"{target.host} has no address", retryable=True)
        for number, address in enumerate(addresses, 1):
            # The last address gets all the remaining time.
            connect_s = None if number == len(addresses) else self._timeout_s / len(addresses)
            headers = request_headers(body, self._secret, int(self._clock()))
            # The certificate must match the name, although the connection goes to an address.
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
                    results.append(
                        result_for_status(response.status_code, response.headers.get("retry-after"))
                    )
                    await _drain_response(response)
                    return results[0]
            except httpx2.ConnectTimeout:
                message = f"{address} did not accept the connection"
                failed = DeliveryResult(None, message, retryable=True, timed_out=True)
            except httpx2.ConnectError as error:
                failed = DeliveryResult(None, _error_text(error), retryable=True)
            except httpx2.TransportError as error:
                return DeliveryResult(None, _error_text(error), retryable=True)
            except (httpx2.InvalidURL, ValueError) as error:
                return DeliveryResult(None, f"cannot send a request to the URL: {error}")
        return failed

    async def _open(self) -> httpx2.AsyncClient:
        """The client. Creating it is slow and does not count against the receiver's timeout."""
        async with self._opening:
            if self._client is None:
                self._client = await call_in_thread(_new_client, self._tls)
        assert self._client is not None
        return self._client


def _new_client(tls: Callable[[], ssl.SSLContext]) -> httpx2.AsyncClient:
    import httpx2

    # httpx2 logs a line per request, with the whole URL.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return httpx2.AsyncClient(
        verify=tls(),
        trust_env=False,  # a proxy would bypass the address check
        http2=False,
        follow_redirects=False,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )


def result_for_status(status: int, retry_after: str | None = None) -> DeliveryResult:
    """The outcome by status: only 429 and 5xx are retryable."""
    if 200 <= status < 300:
        return DeliveryResult(status)
    if 300 <= status < 400:
        return DeliveryResult(status, f"HTTP {status}: redirects are not followed")
    retryable = status == _TOO_MANY_REQUESTS or status >= 500
    retry_after_s = parse_retry_after(retry_after, MOST_RETRY_AFTER_S) if retryable else None
    return DeliveryResult(status, f"HTTP {status}", retryable, retry_after_s)


async def _drain_response(response: httpx2.Response) -> None:
    """Read a short answer to its end. The status has decided; errors are ignored."""
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
    text = (root_cause(error) or str(error) or type(error).__name__)[:200]
    return f"{text}{_FIREWALL_HINT}" if text in _FIREWALL_ERRORS else text
