"""One attempt: only to the checked receiver, within its timeout."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.common.aio import STALL_THRESHOLD_S
from sluice.common.features.workflows.webhooks.hosts import AllowedHosts, IpAddress
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.webhooks import sender as addresses
from sluice.worker.features.webhooks.request import signature
from sluice.worker.features.webhooks.sender import MOST_ANSWER_BYTES, DeliveryResult, Sender
from tests.support.webhook_receiver import CUT, DRIP, HANG, Answer, Receiver, Script

SECRET = b"s3cret"
BODY = b'{"event_id":"x","n":1}'
HERE = ipaddress.ip_address("127.0.0.1")
Make = Callable[..., Sender]
Listen = Callable[..., Awaitable[Receiver]]


class Names:
    """A resolver that counts its calls."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self.asked: list[tuple[str, int]] = []
        self._answers = list(answers)

    async def __call__(self, host: str, port: int) -> Sequence[IpAddress]:
        self.asked.append((host, port))
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return [ipaddress.ip_address(text) for text in answer]


@pytest.fixture
async def sender() -> AsyncIterator[Make]:
    made: list[Sender] = []

    def make(
        allowed: str = "127.0.0.1", timeout_s: float = 20.0, secret: bytes = SECRET, **rest: Any
    ) -> Sender:
        made.append(Sender(AllowedHosts.parse(allowed), secret, timeout_s, **rest))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Listen]:
    """Starts receivers, and stops all of them."""
    started: list[Receiver] = []

    async def start(script: Script | None = None, **options: Any) -> Receiver:
        started.append(Receiver(script))
        return await started[-1].start(**options)

    yield start
    for each in started:
        await each.close()


async def test_what_arrives_is_what_was_sent_and_signed(sender: Make, receiver: Listen) -> None:
    packed = Answer(200, {"Content-Encoding": "gzip"}, b"no gzip at all")  # is not decompressed
    server = await receiver({"/": [packed]})
    times = iter([1_000.9, 2_000.0])
    sending = sender(clock=lambda: next(times))
    assert await sending.send(server.url("/a/b?c=%20d"), BODY) == DeliveryResult(200)
    assert await sending.send(server.url(), BODY) == DeliveryResult(200)
    assert [(got.path, got.body) for got in server.got] == [("/a/b?c=%20d", BODY), ("/", BODY)]
    for got, stamp in zip(server.got, (1000, 2000)):  # each attempt has a new timestamp
        expected = {
            "x-workflow-timestamp": str(stamp), "x-workflow-event": "job_callback",
            "x-workflow-signature": signature(BODY, SECRET, stamp),
            "x-workflow-signature-version": "v1", "content-type": "application/json",
            "host": f"127.0.0.1:{server.port}", "accept-encoding": "identity",
        }  # fmt: skip
        assert expected.items() <= got.headers.items()
    before = int(time.time())
    assert await sender(secret=b"").send(server.url(), BODY) == DeliveryResult(200)
    assert "x-workflow-signature" not in server.got[2].headers
    assert before <= int(server.got[2].headers["x-workflow-timestamp"]) <= time.time()


async def test_failures_of_the_connection_and_the_receiver(sender: Make, receiver: Listen) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        attempted = await sender().send(url, BODY)
    assert attempted == DeliveryResult(None, "Connection refused", retryable=True)
    long = Answer(500, body=b"x" * (200 * MOST_ANSWER_BYTES))
    later = Answer(429, {"Retry-After": "17"})
    server = await receiver({"/": [CUT, long, later]})
    attempted = await sender().send(server.url(), BODY)
    assert (attempted.status, attempted.ok, attempted.retryable) == (None, False, True)
    attempted = await sender().send(server.url(), BODY)  # read in part
    assert (attempted.status, attempted.retryable) == (500, True)
    attempted = await sender().send(server.url(), BODY)
    assert (attempted.retryable, attempted.retry_after_s) == (True, 17.0)


async def test_answers_that_are_not_http_or_never_end(sender: Make) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-nonsense\r\n" * 9)
        writer.close()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not writer.is_closing():
            writer.write(b"X-More: 1\r\n")
            await asyncio.sleep(0.02)

    for answer, timeout_s in ((nonsense, 20.0), (drip, 0.3)):
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            attempted = await sender(timeout_s=timeout_s).send(url, BODY)
        assert (attempted.status, attempted.retryable) == (None, True)
        assert attempted.timed_out == (answer is drip)


async def test_redirects_and_proxies_are_not_followed(
    sender: Make, receiver: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = await receiver()
    server = await receiver({"/": [Answer(301, {"Location": elsewhere.url("/secret")})]})
    attempted = await sender().send(server.url(), BODY)
    assert (attempted.status, attempted.retryable) == (301, False)
    assert "redirect" in attempted.error
    # Nor is a proxy of the environment used.
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, elsewhere.url())
    assert (await sender().send(server.url("/other"), BODY)).ok
    assert elsewhere.connections == 0


async def test_a_blocked_connection_names_the_firewall(
    sender: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "whatever asyncio says")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", forbidden)
    attempted = await sender().send("http://127.0.0.1:9/", BODY)
    assert attempted.retryable
    assert "Operation not permitted: blocked by a firewall or by IPAddressDeny=" in attempted.error


@pytest.mark.parametrize("connecting", [True, False], ids=["connecting", "asking"])
async def test_a_stall_of_this_process_is_not_a_timeout(
    sender: Make, monkeypatch: pytest.MonkeyPatch, connecting: bool
) -> None:
    """The answer that arrived during the stall is read first."""
    loop = asyncio.get_running_loop()
    connect, over = loop.create_connection, threading.Event()
    timeout_s = 0.5

    def stall() -> None:
        time.sleep(timeout_s + 2 * STALL_THRESHOLD_S)
        loop.call_soon(loop.call_soon, over.set)  # after the timers have run

    async def connect_late(*args: Any, **rest: Any) -> Any:
        stall()
        return await connect(*args, **rest)

    def answer(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            while piece := peer.recv(65_536):
                if piece.endswith(BODY):
                    break
            if not connecting:
                loop.call_soon_threadsafe(stall)
            over.wait()
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    if connecting:
        monkeypatch.setattr(loop, "create_connection", connect_late)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = asyncio.create_task(asyncio.to_thread(answer, listening))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        assert await sender(timeout_s=timeout_s).send(url, BODY) == DeliveryResult(200)
        await answering


async def test_endless_answers_are_not_waited_for(sender: Make, receiver: Listen) -> None:
    server = await receiver({"/": [DRIP], "/silent": [HANG]})
    timed_out = DeliveryResult(None, "no answer within 0.2 s", retryable=True, timed_out=True)
    assert await sender(timeout_s=0.2).send(server.url("/silent"), BODY) == timed_out
    # After the status, only a little of the rest is read.
    assert await sender(timeout_s=60.0).send(server.url(), BODY) == DeliveryResult(200)
    assert await sender(timeout_s=0.3).send(server.url(), BODY) == DeliveryResult(200)


async def test_a_name_is_looked_up_once_and_pinned(sender: Make, receiver: Listen) -> None:
    server = await receiver()
    names = Names(["127.0.0.1"], ["127.9.9.9"])
    sending = sender("hooks.test", look_up=names)
    assert (await sending.send(server.url("/x", "hooks.test"), BODY)).ok
    assert names.asked == [("hooks.test", server.port)]
    assert server.got[0].headers["host"] == f"hooks.test:{server.port}"
    # If the first address fails the next one is tried; the receiver listens on the second only.
    sending = sender("hooks.test", look_up=Names(["::1", "127.0.0.1"]))
    assert (await sending.send(server.url("/", "hooks.test"), BODY)).ok


async def test_names_with_private_addresses_are_refused(sender: Make, receiver: Listen) -> None:
    server = await receiver()
    for answer in (["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"], ["0.0.0.0"]):
        sending = sender("", look_up=Names(answer))
        attempted = await sending.send(server.url("/", "rebind.test"), BODY)
        assert (attempted.ok, attempted.retryable) == (False, False)
        assert "not a public address" in attempted.error
    attempted = await sender("").send(server.url(), BODY)  # the allowed hosts have changed
    assert (attempted.ok, attempted.retryable) == (False, False)
    assert server.connections == 0


async def test_an_unknown_name_is_retryable(sender: Make) -> None:
    async def silent(host: str, port: int) -> Sequence[IpAddress]:
        await asyncio.sleep(3600)
        return []

    for answer in (socket.gaierror(-2, "Name or service not known"), []):
        sending = sender("hooks.test", look_up=Names(answer))
        attempted = await sending.send("http://hooks.test/", BODY)
        assert (attempted.ok, attempted.retryable) == (False, True)
        assert "hooks.test has no address" in attempted.error
    # Resolving is bounded by the timeout.
    attempted = await sender("hooks.test", 0.1, look_up=silent).send("http://hooks.test/", BODY)
    assert attempted.timed_out


async def test_the_system_resolver_runs_in_a_thread(monkeypatch: Any) -> None:
    threads: list[Any] = []

    async def noted(function: Any, *args: Any) -> Any:
        threads.append(function)
        return await call_in_thread(function, *args)

    monkeypatch.setattr(addresses, "call_in_thread", noted)
    assert HERE in await addresses.resolve("localhost", 80)
    assert threads == [socket.getaddrinfo]
    with pytest.raises(OSError):
        await addresses.resolve("no-such-name.invalid", 80)


async def test_the_certificate_must_match_the_name(
    sender: Make, receiver: Listen, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    from tests.worker.features.webhooks.certificates import Authority

    authority = Authority(tmp_path)
    server = await receiver(tls=authority.server("hooks.test"))
    sending = sender("hooks.test,other.test", look_up=Names(["127.0.0.1"]), tls=authority.trusting)
    assert await sending.send(server.url("/", "hooks.test"), BODY) == DeliveryResult(200)
    wrong = await sending.send(server.url("/", "other.test"), BODY)
    assert (wrong.status, wrong.retryable) == (None, True)
    assert "certificate is not trusted" in wrong.error
    stranger = sender("hooks.test", look_up=Names(["127.0.0.1"]))
    assert "not trusted" in (await stranger.send(server.url("/", "hooks.test"), BODY)).error
    # Then the right name: a connection for one name is not reused for another.
    assert (await sending.send(server.url("/", "hooks.test"), BODY)).ok
    assert len(server.got) == 2
