"""Real processes with a fake systemd: readiness, status, watchdog, sockets, stop."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.common.errors import EXIT_CONFIG
from sluice.gateway.http.connection_limits import ConnectionLimits
from tests.support.gateway.harness import CHAT
from tests.support.gateway.raw import post, raw
from tests.support.processes import jobs
from tests.support.processes.systemd import Service, Systemd, systemd_in
from tests.support.processes.worker import ROOT, wait_until
from tests.support.servers import BUNDLED, RealServer, require_binary

pytestmark = pytest.mark.process

#: Notified three times per period.
PERIOD_S = 1.5
WATCHDOG = {"WATCHDOG_USEC": str(int(PERIOD_S * 1e6))}
SLOW = pytest.mark.slow("starts more processes")
BOTH = pytest.mark.parametrize("module", ["gateway", "worker"])
Message = dict[str, str]


@pytest.fixture
def server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED), durable=True)
    yield server
    server.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    yield from systemd_in(tmp_path)


@pytest.fixture
def settings(server: RealServer) -> dict[str, str]:
    return {"REDIS_URL": server.url, "BLOCK_MS": "50", **WATCHDOG}


def ready(message: Message) -> bool:
    return "READY" in message


def is_watchdog(message: Message) -> bool:
    return message.get("WATCHDOG") == "1"


def is_status_only(message: Message) -> bool:
    return "WATCHDOG" not in message


# -- ready, status, watchdog ------------------------------------------------------------------


def test_a_gateway_serves_on_the_passed_socket(systemd: Systemd, settings: dict[str, str]) -> None:
    """PORT is ignored: it is in use, so listening there would fail."""
    gateway = systemd.gateway(**settings, PORT=str(systemd.port))
    assert gateway.receive_until(ready)["STATUS"] == "0 streams, 0 jobs in progress, 0 waiting"
    url = f"http://127.0.0.1:{systemd.port}"
    assert httpx.post(f"{url}/v1/jobs", json=CHAT, timeout=60).status_code == 202
    assert gateway.receive_until(is_watchdog)["STATUS"].endswith("waiting")
    status_message = gateway.receive_until(lambda message: "1 waiting" in message["STATUS"])
    assert status_message["STATUS"] == "0 streams, 0 jobs in progress, 1 waiting"
    assert f"listening on {url}" in gateway.log
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.receive_until(lambda message: "STOPPING" in message)["STATUS"].startswith("stop")
    assert gateway.wait() == 0


@SLOW
def test_a_worker_reports_status_and_extends_the_stop(
    systemd: Systemd, server: RealServer, settings: dict[str, str]
) -> None:
    more = {"ECHO_DELAY_MS": "60000", "MAX_INFLIGHT": "1", "SHUTDOWN_GRACE_S": "1.5"}
    worker = systemd.echo_worker(**settings, **more)
    assert worker.receive_until(ready)["STATUS"] == "0 running, 0 waiting"
    submitted = [jobs.post(server.client) for _ in range(3)]
    jobs.wait_for(server.client, submitted[0], b"running")
    worker.receive_until(
        lambda message: message["STATUS"].startswith("1 running, ") and is_watchdog(message)
    )
    worker.process.send_signal(signal.SIGTERM)
    stopping = worker.receive_until(lambda message: "STOPPING" in message)
    assert stopping["STATUS"] == "stopping: 1 running"
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) == PERIOD_S * 1e6 * 2 / 3
    again = worker.receive_until(lambda message: "EXTEND_TIMEOUT_USEC" in message)
    assert again["STATUS"].startswith("stopping: 1 running, ")
    assert is_watchdog(again)
    assert worker.wait() == 0


@SLOW
def test_a_blocked_event_loop_sends_no_watchdog(
    systemd: Systemd, server: RealServer, settings: dict[str, str], tmp_path: Path
) -> None:
    """The lease thread keeps the job, so only the watchdog detects it."""
    (tmp_path / "stuck.py").write_text(
        "import pathlib, time\n"
        "async def stuck(context, payload):\n"
        "    pathlib.Path(__file__).with_name('is_stuck').touch()\n"
        "    time.sleep(60)\n"
        "def register(registry):\n    registry.add('chat', stuck)\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    worker = systemd.worker(**settings, **path, WORKER_HANDLERS="stuck")
    worker.receive_until(is_watchdog)
    jobs.post(server.client)
    wait_until((tmp_path / "is_stuck").exists)
    while worker.receive(0.01):
        pass  # sent before
    assert worker.receive(2 * PERIOD_S) is None
    worker.process.send_signal(signal.SIGABRT)  # as systemd does after a timeout
    assert worker.wait() == -signal.SIGABRT
    assert 'stuck.py", line 4 in stuck' in worker.log


@SLOW
@BOTH
def test_an_unresponsive_redis_stops_the_watchdog(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str
) -> None:
    service = systemd.start(module, **settings)
    service.receive_until(is_watchdog)
    server.pause()
    unfed = service.receive_until(is_status_only)
    assert "Redis does not answer" in unfed["STATUS"]
    assert service.log.count("the watchdog is not fed: Redis has not answered for") == 1
    server.resume()
    service.receive_until(is_watchdog)
    assert "recovered: the watchdog is fed again" in service.log


@SLOW
@BOTH
def test_processes_wait_for_redis_at_start(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str
) -> None:
    server.kill()
    service = systemd.start(module, **settings)
    assert "Redis does not answer" in service.receive_until(ready)["STATUS"]
    for _ in range(6):  # two periods: a restart would not help
        assert is_watchdog(service.receive() or {})
    server.start()
    service.receive_until(lambda message: message["STATUS"].endswith("0 waiting"))
    assert service.process.poll() is None


# -- invalid configuration --------------------------------------------------------------------


@SLOW
@BOTH
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "when Redis answers"])
def test_a_refused_login_ends_the_process_with_78(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str, waits: bool
) -> None:
    if waits:
        server.kill()
    unknown_user = server.url.replace("unix://", "unix://unknown_user:hunter2@")
    service = systemd.start(module, **{**settings, "REDIS_URL": unknown_user})
    if waits:
        assert "Redis does not answer" in service.receive_until(ready)["STATUS"]
        server.start()
    assert service.wait() == EXIT_CONFIG
    last = service.log.splitlines()[-1]
    assert last.startswith("sluice: ") or waits
    assert "Redis rejects the login" in last
    assert "hunter2" not in service.log
    assert "Traceback" not in service.log


# -- restarts without refused requests --------------------------------------------------------


class _Stalled(Exception):
    """A client was stalled for longer than a server waits."""


class Clients:
    """Clients that send requests continuously, each on a new connection or on a kept one."""

    def __init__(self, port: int, keep: bool = False) -> None:
        self._port = port
        self._keep = keep
        self.answers: list[int] = []
        self.faults: list[str] = []
        self.enough = asyncio.Event()

    async def run(self, clients: int) -> None:
        await asyncio.gather(*(self._reconnect() for _ in range(clients)))

    async def _reconnect(self) -> None:
        while not self.enough.is_set():
            try:
                await asyncio.wait_for(self.use_connection(), 30)
            except _Stalled:  # the test was stalled for longer than any server would wait
                continue
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                self.faults.append(repr(error))

    async def use_connection(self) -> None:
        clock = asyncio.get_running_loop().time
        came = clock()
        async with raw(self._port) as connection:
            closed = False
            while not closed:
                # Long enough to be accepted by a gateway that is stopping.
                await asyncio.sleep(random.uniform(0, 0.2))
                kept = self._keep and not self.enough.is_set()
                connection.send(post(CHAT, Connection="keep-alive" if kept else "close"))
                silent_s = clock() - came
                try:
                    answer = await connection.answer()
                except (OSError, EOFError):
                    if silent_s > ConnectionLimits.shutdown_grace_s / 2:
                        raise _Stalled from None
                    raise
                self.answers.append(answer.status)
                closed = answer.header("connection") == "close"
                came = clock()


@SLOW
@pytest.mark.parametrize("keep", [False, True], ids=["fresh", "kept alive"])
async def test_a_restart_under_load_refuses_no_request(
    systemd: Systemd, server: RealServer, settings: dict[str, str], keep: bool
) -> None:
    more = {"BACKPRESSURE_MAX_BACKLOG": "1000000"}
    loop = asyncio.get_running_loop()

    async def off_loop(work: Callable[..., Any], *args: Any) -> Any:
        return await loop.run_in_executor(None, work, *args)

    gateway: Service = systemd.gateway(**settings, **more)
    await off_loop(gateway.receive_until, ready)
    clients = Clients(systemd.port, keep)
    coming = asyncio.create_task(clients.run(20))
    for _ in range(3):
        served = len(clients.answers)
        await off_loop(wait_until, lambda served=served: len(clients.answers) > served + 50)
        gateway.process.send_signal(signal.SIGTERM)
        assert await off_loop(gateway.wait) == 0
        gateway = systemd.gateway(**settings, **more)
        await off_loop(gateway.receive_until, ready)
    served = len(clients.answers)
    await off_loop(wait_until, lambda: len(clients.answers) > served + 50)
    clients.enough.set()
    await coming
    assert clients.faults == []
    assert set(clients.answers) == {202}
    assert server.client.xlen("jobs:stream") == len(clients.answers)
