"""TLS to a real server: every kind of client, and the cause of each failed connection."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis.asyncio.connection import SSLConnection

from sluice.common.errors import UnsuitableRedis
from sluice.common.process import preflight
from sluice.common.redis.addresses import validate_url
from sluice.common.redis.connection import async_client, sync_client
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.redis.tls import TlsProblem, shared_context, tls_problem
from sluice.ops.doctor.checks import redis as checks
from sluice.ops.doctor.finding import Health
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.redis_target import RedisTarget
from tests.ops.doctor.machines import finding_of, make_machine
from tests.support.topologies import Certificates, Node, one_node
from tests.support.topologies.node import pick_port

starts_servers = [pytest.mark.process, pytest.mark.slow("starts TLS servers")]
EXPIRED = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
#: More than the buffers of a TLS transport hold.
LARGE = b"x" * (3 << 20)
UNTRUSTED = "the certificate of Redis is not trusted"

StartNode = Callable[[Certificates | None], Node]
Tls = tuple[Node, Certificates, str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartNode]:
    """Starts servers; without certificates they do not use TLS."""
    with ExitStack() as stack:
        yield lambda certificates: stack.enter_context(one_node(tmp_path, certificates))


@pytest.fixture
def tls(start: StartNode, tmp_path: Path) -> Tls:
    """A server with TLS, its certificates, and its URL."""
    certificates = Certificates(tmp_path / "tls")
    node = start(certificates)
    return node, certificates, f"rediss://{node.address}/0{certificates.query}"


def problem_of(url: str) -> TlsProblem:
    """The problem that a blocking client reports."""
    with sync_client(url) as client, pytest.raises(redis.RedisError) as caught:
        client.ping()
    problem = tls_problem(url, caught.value)
    assert problem is not None, caught.value
    return problem


def use_certificate(node: Node, certificates: Certificates, name: str) -> None:
    """Makes a running server use another certificate for new connections."""
    node.run(
        *("CONFIG", "SET", "tls-cert-file", str(certificates.file(name, "pem"))),
        *("tls-key-file", str(certificates.file(name, "key"))),
    )


class TestConnections:
    pytestmark = starts_servers

    @pytest.mark.parametrize("client_required", [False, True])
    async def test_every_kind_of_client_connects(
        self, client_required: bool, start: StartNode, tmp_path: Path
    ) -> None:
        certificates = Certificates(tmp_path / "tls", client_required=client_required)
        node = start(certificates)
        url = validate_url(f"rediss://{node.address}/0{certificates.query}")
        with sync_client(url) as blocking:
            assert blocking.ping()
        async with async_client(url, connections=2) as pooled:
            assert await pooled.echo(LARGE) == LARGE
        messages: asyncio.Queue[bytes] = asyncio.Queue()
        wire = PipelinedConnection(url, on_message=messages.put_nowait)
        await wire.execute_command("SUBSCRIBE", "news")
        node.client.publish("news", "today")
        assert await asyncio.wait_for(messages.get(), 30) == b"today"
        await wire.aclose()

    async def test_a_pipelined_connection_survives_a_restart(self, tls: Tls) -> None:
        node, _, url = tls
        wire = PipelinedConnection(url, block_s=60)
        replies = [wire.execute_command("ECHO", LARGE) for _ in range(4)]
        assert await asyncio.gather(*replies) == [LARGE] * 4
        blocked = asyncio.create_task(wire.execute_command("BLPOP", "nothing", 0))
        while not node.client.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.01)
        node.kill()
        with pytest.raises(redis.ConnectionError):
            await blocked
        node.start()
        assert await wire.execute_command("PING") == b"PONG"
        await wire.aclose()

    async def test_closing_does_not_wait_for_a_frozen_server(self, tls: Tls) -> None:
        """The late end of the old connection does not affect the new one."""
        node, _, url = tls
        wire = PipelinedConnection(url, block_s=60)
        await wire.execute_command("PING")
        node.pause()
        closing = asyncio.create_task(wire.aclose())
        await asyncio.sleep(0)
        assert not wire.ready
        node.resume()
        assert await wire.execute_command("PING") == b"PONG"
        await closing
        assert wire.ready
        assert await wire.execute_command("PING") == b"PONG"
        node.pause()
        await wire.aclose()
        node.resume()

    async def test_connections_share_a_context(self, start: StartNode, tmp_path: Path) -> None:
        certificates = Certificates(tmp_path / "tls", client_required=True)
        node = start(certificates)
        url = f"rediss://{node.address}/0{certificates.query}"
        wires = [PipelinedConnection(url) for _ in range(2)]
        contexts = set()
        for wire in wires:
            await wire.execute_command("PING")
            assert isinstance(wire._opened_by, SSLConnection)
            contexts.add(wire._opened_by.ssl_context.get())
        assert len(contexts) == 1
        certificates.issue("client")
        os.utime(certificates.file("client", "pem"), (1, 1))  # a time that differs for certain
        await wires[0].aclose()
        await wires[0].execute_command("PING")
        assert isinstance(wires[0]._opened_by, SSLConnection)
        contexts.add(wires[0]._opened_by.ssl_context.get())
        assert len(contexts) == 2
        for wire in wires:
            await wire.aclose()


class TestProblems:
    pytestmark = starts_servers

    def test_a_ca_that_is_not_known(self, tls: Tls, tmp_path: Path) -> None:
        node, _, _ = tls
        other = Certificates(tmp_path / "other")
        for url in (
            f"rediss://{node.address}/0",
            f"rediss://{node.address}/0{other.query}",
            f"rediss+cluster://{node.address}",
            f"rediss+sentinel://{node.address}/mymaster",
        ):
            problem = problem_of(url)
            assert problem.permanent
            assert UNTRUSTED in problem.cause
            assert "ssl_ca_certs=" in problem.fix
            with pytest.raises(UnsuitableRedis, match=f"{UNTRUSTED}.*ssl_ca_certs="):
                preflight.check_redis(url)
            server = RedisServer(RedisTarget(url, "REDIS_URL"))
            found = finding_of(checks.reachable, make_machine(tmp_path, redis=server))
            assert (found.status, found.cause, found.fix) == (Health.FAIL, *problem[:2])
        unverified = f"rediss://{node.address}/0?ssl_cert_reqs=none"
        with sync_client(unverified) as client:
            assert client.ping()

    def test_a_set_with_one_server_down_is_not_judged(self, tls: Tls) -> None:
        """The other server may have the right certificate."""
        node, _, _ = tls
        url = f"rediss+cluster://{node.address},127.0.0.1:{pick_port()}"
        with sync_client(url) as client, pytest.raises(redis.ConnectionError) as caught:
            client.ping()
        assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
        assert tls_problem(url, caught.value) is None

    def test_a_certificate_of_another_host(self, tls: Tls) -> None:
        node, certificates, _ = tls
        url = f"rediss://localhost:{node.port}/0{certificates.query}"
        problem = problem_of(url)
        assert problem.permanent
        assert "Hostname mismatch" in problem.cause
        assert "host of the certificate" in problem.fix
        with sync_client(f"{url}&ssl_check_hostname=no") as client:
            assert client.ping()

    async def test_an_expired_certificate_may_be_renewed(self, tls: Tls) -> None:
        """A process that starts meanwhile waits, and a running one reconnects."""
        node, certificates, url = tls
        certificates.issue("expired", EXPIRED)
        use_certificate(node, certificates, "expired")
        problem = problem_of(url)
        assert not problem.permanent
        assert "expired" in problem.cause
        assert not preflight._try_check(url)
        wire = PipelinedConnection(url)
        with pytest.raises(redis.ConnectionError, match="certificate has expired"):
            await wire.execute_command("PING")
        use_certificate(node, certificates, "server")
        assert await wire.execute_command("PING") == b"PONG"
        await wire.aclose()

    def test_a_server_that_requires_certificates(self, start: StartNode, tmp_path: Path) -> None:
        certificates = Certificates(tmp_path / "tls", client_required=True)
        node = start(certificates)
        problem = problem_of(f"rediss://{node.address}/0?ssl_ca_certs={certificates.ca}")
        assert "`ssl_certfile=` and `ssl_keyfile=`" in problem.fix
        assert not problem.permanent

    def test_the_wrong_scheme(self, tls: Tls, start: StartNode) -> None:
        encrypted, plain = tls[0], start(None)
        assert "rediss instead of redis" in problem_of(f"redis://{encrypted.address}/0").fix
        assert "redis instead of rediss" in problem_of(f"rediss://{plain.address}/0").fix


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://one/0?ssl_ca_certs=/ca.pem", "ssl_ca_certs, which needs rediss://"),
        ("rediss://one/0?ssl_ca_cert=/ca.pem", "unknown TLS option"),
        ("rediss+sentinel://one/mymaster?ssl_ca=/ca.pem", "unknown TLS option"),
        ("rediss://one/0?ssl_ca_certs=/none/ca.pem", "/none/ca.pem, which cannot be read: No such"),
        ("rediss+cluster://one?ssl_keyfile=/none/key", "/none/key, which cannot be read: No such"),
        ("rediss://one/0?ssl_cert_reqs=maybe", "cannot be used: Invalid SSL Certificate"),
        ("rediss://one/0?ssl_ciphers=none-of-these", "cannot be used:"),
    ],
)
def test_invalid_tls_options_are_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        validate_url(url)
    assert complaint in str(caught.value)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    one, other = Certificates(tmp_path / "one"), Certificates(tmp_path / "other")
    pem, key = one.file("client", "pem"), other.file("client", "key")
    with pytest.raises(ValueError, match="key values mismatch"):
        validate_url(f"rediss://one/0?ssl_certfile={pem}&ssl_keyfile={key}")
    with pytest.raises(ValueError, match="cannot be used"):
        validate_url(f"rediss://one/0?ssl_ca_certs={key}")


def test_a_context_verifies_certificates_by_default() -> None:
    context = shared_context(SSLConnection().ssl_context)
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert shared_context(SSLConnection().ssl_context) is context


def test_redis_cli_gets_the_certificates() -> None:
    query = "ssl_ca_certs=/ca&ssl_certfile=/cert&ssl_keyfile=/key&ssl_cert_reqs=none"
    target = RedisTarget(f"rediss://host/0?{query}&ssl_password=hunter2", "REDIS_URL")
    assert target.cli == "redis-cli -h host --tls --cacert /ca --cert /cert --key /key --insecure"
    assert target.masked_url.endswith("ssl_password=***")
