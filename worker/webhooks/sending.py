"""Sends one delivery to its receiver, and to nobody else; says what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import ssl
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from common.patience import within
from common.webhook_hosts import Address, AllowedHosts, WebhookRefused, WebhookTarget, check_url
from worker.http_faults import cause_of, retry_after_s
from worker.threads import call_in_thread
from worker.webhooks.addresses import Resolve, addresses_of, resolve
from worker.webhooks.signing import headers_of

if TYPE_CHECKING:
    import httpx2

#: What is read of an answer, so that its sender is not cut short; nobody looks at it.
MOST_ANSWER_BYTES: Final = 4096
#: How long that may take.
ANSWER_S: Final = 1.0
#: Addresses of one name that are tried.
MOST_ADDRESSES: Final = 3
#: Longest wait that a receiver may ask for, before the cap of the settings.
MOST_RETRY_AFTER_S: Final = 86_400.0
_TOO_MANY: Final = 429
#: What a connection hears that the unit's IPAddressDeny= stands in the way of.
_FIREWALLED: Final = (os.strerror(errno.EPERM), os.strerror(errno.EACCES))
_FORBIDDEN: Final = ": a firewall, or IPAddressDeny= of this worker's unit, keeps it from there"


class Attempted(NamedTuple):
    """What came of one attempt."""

    #: Of the answer; None where there was none.
    status: int | None
    #: Empty for a success.
    error: str = ""
    #: Whether it may go better later.
    retryable: bool = False
    #: Seconds that the receiver asks for.
    asked_s: float | None = None
    #: Whether time ran out: the receiver holds up whoever waits for it.
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether it was delivered."""
        return not self.error


class Sender:
    """Opens a connection for each delivery: those to one address need not be for one name."""

    def __init__(
        self,
        allowed: AllowedHosts,
        secret: bytes,
        timeout_s: float,
        *,
        look_up: Resolve = resolve,
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

    async def send(self, url: str, body: bytes) -> Attempted:
        """One attempt, from the look at the URL to the answer, within the time it may take."""
        heard: list[Attempted] = []
        try:
            target = check_url(url, self._allowed)
            await self._open()
            return await within(self._timeout_s, self._deliver(target, body, heard))
        except WebhookRefused as error:
            return Attempted(None, str(error))
        except asyncio.TimeoutError:
            if heard:  # only the rest of the answer is late
                return heard[0]
            words = f"no answer within {self._timeout_s:g} s"
            return Attempted(None, words, retryable=True, timed_out=True)

    async def close(self) -> None:
        """Close every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _deliver(
        self, target: WebhookTarget, body: bytes, heard: list[Attempted]
    ) -> Attempted:
        try:
            addresses = await addresses_of(target, self._allowed, self._look_up)
        except (OSError, UnicodeError) as error:
            words = f"{target.host} has no address: {cause_of(error) or error}"
            return Attempted(None, words, retryable=True)
        return await self._ask(target, addresses[:MOST_ADDRESSES], body, heard)

    async def _ask(
        self,
        target: WebhookTarget,
        addresses: Sequence[Address],
        body: bytes,
        heard: list[Attempted],
    ) -> Attempted:
        """The first address that takes the connection; what it answers is the answer."""
        import httpx2

        client = await self._open()
        failed = Attempted(None, f"{target.host} has no address", retryable=True)
        for number, address in enumerate(addresses, 1):
            # The last one has all the time that is left.
            connect_s = None if number == len(addresses) else self._timeout_s / len(addresses)
            headers = headers_of(body, self._secret, int(self._clock()))
            # The certificate must be the name's, although the connection goes to an address.
            extensions = {} if target.address else {"sni_hostname": target.host}
            try:
                async with client.stream(
                    "POST",
                    target.at(address),
                    content=body,
                    headers={"Host": target.authority, **headers},
                    timeout=httpx2.Timeout(None, connect=connect_s),
                    extensions=extensions,
                ) as response:
                    heard.append(judge(response.status_code, response.headers.get("retry-after")))
                    await _read_a_little(response)
                    return heard[0]
            except httpx2.ConnectTimeout:
                words = f"{address} takes no connection"
                failed = Attempted(None, words, retryable=True, timed_out=True)
            except httpx2.ConnectError as error:
                failed = Attempted(None, _words(error), retryable=True)
            except httpx2.TransportError as error:
                return Attempted(None, _words(error), retryable=True)
            except (httpx2.InvalidURL, ValueError) as error:
                return Attempted(None, f"no request can be made of the URL: {error}")
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


def judge(status: int, retry_after: str | None = None) -> Attempted:
    """What a status means: only 429 and 5xx may go better later."""
    if 200 <= status < 300:
        return Attempted(status)
    if 300 <= status < 400:
        return Attempted(status, f"HTTP {status}: redirects are not followed")
    retryable = status == _TOO_MANY or status >= 500
    asked_s = retry_after_s(retry_after, MOST_RETRY_AFTER_S) if retryable else None
    return Attempted(status, f"HTTP {status}", retryable, asked_s)


async def _read_a_little(response: httpx2.Response) -> None:
    """As much as a decent answer has. The status has decided; whatever happens now, it stands."""
    import httpx2

    async def read() -> None:
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                return

    with contextlib.suppress(asyncio.TimeoutError, httpx2.TransportError):
        await asyncio.wait_for(read(), ANSWER_S)


def _words(error: Exception) -> str:
    words = (cause_of(error) or str(error) or type(error).__name__)[:200]
    return f"{words}{_FORBIDDEN}" if words in _FIREWALLED else words
