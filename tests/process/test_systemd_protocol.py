"""Real processes under what looks to them like systemd: ready, status, watchdog, sockets, stop."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.http.connection_limits import ConnectionLimits
from tests.gateway.conftest import CHAT
from tests.process.systemd import Service, Systemd, systemd_in
from tests.process.test_worker_process import post, status
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import wait_until

pytestmark = pytest.mark.process

EX_CONFIG = 78
#: Fed three times per period.
PERIOD_S = 1.5
WATCHDOG = {"WATCHDOG_USEC": str(int(PERIOD_S * 1e6))}
BOTH = pytest.mark.parametrize("module", ["gateway", "worker"])
Message = dict[str, str]


@pytest.fixture
def server() -> Iterator[RealServer]:
    """One that a test may stop and start."""
    server = RealServer(require_binary(BUNDLED), "--appendonly", "yes")
    yield server
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGCONT)
    server.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    yield from systemd_in(tmp_path)


@pytest.fixture
def settings(server: RealServer) -> dict[str, str]:
    return {"REDIS_URL": server.url, "BLOCK_MS": "50", **WATCHDOG}


def ready(message: Message) -> bool:
    return "READY" in message


def fed(message: Message) -> bool:
    return message.get("WATCHDOG") == "1"


def not_fed(message: Message) -> bool:
    return "WATCHDOG" not in message


def restart(server: RealServer) -> None:
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server.process = subprocess.Popen(server.process.args, **silent)


# -- ready, status, watchdog ------------------------------------------------------------------


def test_a_gateway_serves_on_the_socket_it_is_handed(
    systemd: Systemd, settings: dict[str, str]
) -> None:
    """PORT is not even looked at: there it could not listen, since somebody does."""
    gateway = systemd.gateway(**settings, PORT=str(systemd.port))
    assert gateway.hear_until(ready)["STATUS"] == "0 streams, 0 jobs in work, 0 waiting"
    url = f"http://127.0.0.1:{systemd.port}"
    assert httpx.post(f"{url}/v1/jobs", json=CHAT, timeout=60).status_code == 202
    assert gateway.hear_until(fed)["STATUS"].endswith("waiting")
    told = gateway.hear_until(lambda message: "1 waiting" in message["STATUS"])
    assert told["STATUS"] == "0 streams, 0 jobs in work, 1 waiting"
    assert f"listening on {url}" in gateway.log
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.hear_until(lambda message: "STOPPING" in message)["STATUS"].startswith("stop")
    assert gateway.wait() == 0


def test_a_worker_tells_what_it_does_and_asks_for_time_while_it_drains(
    systemd: Systemd, server: RealServer, settings: dict[str, str]
) -> None:
    more = {"ECHO_DELAY_MS": "60000", "MAX_INFLIGHT": "1", "SHUTDOWN_GRACE_S": "3"}
    worker = systemd.echo_worker(**settings, **more)
    assert worker.hear_until(ready)["STATUS"] == "0 running, 0 waiting"
    jobs = [post(server.client) for _ in range(3)]
    wait_until(lambda: status(server.client, jobs[0]) == b"running")
    worker.hear_until(lambda message: message["STATUS"].startswith("1 running, ") and fed(message))
    worker.process.send_signal(signal.SIGTERM)
    stopping = worker.hear_until(lambda message: "STOPPING" in message)
    assert stopping["STATUS"] == "stopping: 1 running"
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) == PERIOD_S * 1e6 * 2 / 3
    again = worker.hear_until(lambda message: "EXTEND_TIMEOUT_USEC" in message)
    assert again["STATUS"].startswith("stopping: 1 running, ")
    assert fed(again)
    assert worker.wait() == 0


@BOTH
def test_a_process_that_stands_still_says_nothing(
    systemd: Systemd, settings: dict[str, str], module: str
) -> None:
    service = systemd.start(module, **settings)
    service.hear_until(fed)
    service.process.send_signal(signal.SIGSTOP)
    service.forget()
    assert service.hear(2 * PERIOD_S) is None  # systemd would end it now
    service.process.send_signal(signal.SIGCONT)
    service.hear_until(fed)


def test_a_loop_that_stands_still_says_nothing(
    systemd: Systemd, server: RealServer, settings: dict[str, str], tmp_path: Path
) -> None:
    """The lease thread goes on, so the job is kept: only the watchdog can tell."""
    (tmp_path / "stuck.py").write_text(
        "import pathlib, time\n"
        "async def stuck(context, payload):\n"
        "    pathlib.Path(__file__).with_name('is_stuck').touch()\n"
        "    time.sleep(60)\n"
        "def register(registry):\n    registry.add('chat', stuck)\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    worker = systemd.worker(**settings, **path, WORKER_HANDLERS="stuck")
    worker.hear_until(fed)
    post(server.client)
    wait_until((tmp_path / "is_stuck").exists)
    worker.forget()
    assert worker.hear(2 * PERIOD_S) is None
    worker.process.send_signal(signal.SIGABRT)  # as systemd does then
    assert worker.wait() == -signal.SIGABRT
    assert 'stuck.py", line 4 in stuck' in worker.log


@BOTH
def test_a_redis_that_falls_silent_ends_the_feeding(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str
) -> None:
    service = systemd.start(module, **settings)
    service.hear_until(fed)
    server.process.send_signal(signal.SIGSTOP)
    unfed = service.hear_until(not_fed)
    assert "Redis does not answer" in unfed["STATUS"]
    assert service.log.count("the watchdog is not fed: Redis has not answered for") == 1
    server.process.send_signal(signal.SIGCONT)
    service.hear_until(fed)
    assert "recovered: the watchdog is fed again" in service.log


@BOTH
def test_a_redis_that_is_away_at_the_start_is_waited_for(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str
) -> None:
    server.process.kill()
    server.process.wait()
    service = systemd.start(module, **settings)
    assert "Redis does not answer" in service.hear_until(ready)["STATUS"]
    for _ in range(6):  # two periods: a restart would cure nothing
        assert fed(service.hear() or {})
    restart(server)
    service.hear_until(lambda message: message["STATUS"].endswith("0 waiting"))
    assert service.process.poll() is None


# -- a configuration that is wrong ------------------------------------------------------------


@BOTH
def test_a_wrong_configuration_exits_with_78(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str, tmp_path: Path
) -> None:
    stranger = server.url.replace("unix://", "unix://stranger:hunter2@")
    wrong = [
        {"LOG_LEVEL": "loud"},
        {"REDIS_URL": stranger},
        {"WORKER_HANDLERS": "no.such.module"} if module == "worker" else {"LISTEN_FDS": "x"},
    ]
    for fault in wrong[:2] if module == "gateway" else wrong:
        service = systemd.start(module, **{**settings, **fault})
        assert service.wait() == EX_CONFIG
        assert service.log.splitlines()[-1].startswith("sluice: ")
        assert "hunter2" not in service.log
        assert "Traceback" not in service.log


@BOTH
def test_a_redis_that_turns_out_to_be_of_no_use_ends_it_with_78(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str
) -> None:
    server.process.kill()
    server.process.wait()
    stranger = server.url.replace("unix://", "unix://stranger:hunter2@")
    service = systemd.start(module, **{**settings, "REDIS_URL": stranger})
    service.hear_until(ready)
    restart(server)
    assert service.wait() == EX_CONFIG
    assert "Redis rejects the login" in service.log.splitlines()[-1]
    assert "hunter2" not in service.log


@BOTH
def test_redis_is_found_by_its_credential(
    systemd: Systemd, server: RealServer, settings: dict[str, str], module: str, tmp_path: Path
) -> None:
    (tmp_path / "redis_url").write_text(f"{server.url}\n")
    own = {**settings, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    del own["REDIS_URL"]
    service = systemd.start(module, **own)
    assert service.hear_until(ready)["STATUS"].endswith("0 waiting")


# -- a restart refuses nobody -----------------------------------------------------------------


class _Late(Exception):
    """A client said nothing for longer than it is owed."""


class Crowd:
    """Clients that keep coming, each request with a connection of its own, or as long as it may."""

    def __init__(self, port: int, keep: bool = False) -> None:
        self._port = port
        self._keep = keep
        self._body = json.dumps(CHAT).encode()
        self.answers: list[int] = []
        self.faults: list[str] = []
        self.enough = asyncio.Event()

    async def run(self, clients: int) -> None:
        await asyncio.gather(*(self._come_again() for _ in range(clients)))

    async def _come_again(self) -> None:
        while not self.enough.is_set():
            try:
                await asyncio.wait_for(self.visit(), 30)
            except _Late:  # we stood still for longer than any server would wait
                continue
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                self.faults.append(repr(error))

    async def visit(self) -> None:
        """Ask on one connection, until it is to be closed."""
        clock = asyncio.get_running_loop().time
        came = clock()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        open_still = True
        while open_still:
            # Long enough to be let in by a gateway that is told to stop before it hears more.
            await asyncio.sleep(random.uniform(0, 0.2))
            kept = self._keep and not self.enough.is_set()
            head = (
                f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(self._body)}\r\n"
                f"Connection: {'keep-alive' if kept else 'close'}\r\n\r\n"
            )
            writer.write(head.encode() + self._body)
            silent_s = clock() - came
            try:
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            except (OSError, EOFError):
                if silent_s > ConnectionLimits.shutdown_grace_s / 2:
                    raise _Late from None
                raise
            length = re.search(rb"content-length: (\d+)", answer)
            assert length is not None
            await reader.readexactly(int(length[1]))
            self.answers.append(int(answer.split(b" ", 2)[1]))
            open_still = b"connection: close" not in answer
            came = clock()
        writer.close()


@pytest.mark.parametrize("keep", [False, True], ids=["fresh", "kept alive"])
async def test_a_restart_under_load_refuses_nobody(
    systemd: Systemd, server: RealServer, settings: dict[str, str], keep: bool
) -> None:
    more = {"BACKPRESSURE_MAX_BACKLOG": "1000000"}
    loop = asyncio.get_running_loop()

    async def off_loop(work: Callable[..., Any], *args: Any) -> Any:
        return await loop.run_in_executor(None, work, *args)

    gateway: Service = systemd.gateway(**settings, **more)
    await off_loop(gateway.hear_until, ready)
    crowd = Crowd(systemd.port, keep)
    coming = asyncio.create_task(crowd.run(20))
    for _ in range(3):
        served = len(crowd.answers)
        await off_loop(wait_until, lambda served=served: len(crowd.answers) > served + 50)
        gateway.process.send_signal(signal.SIGTERM)
        assert await off_loop(gateway.wait) == 0
        gateway = systemd.gateway(**settings, **more)
        await off_loop(gateway.hear_until, ready)
    served = len(crowd.answers)
    await off_loop(wait_until, lambda: len(crowd.answers) > served + 50)
    crowd.enough.set()
    await coming
    assert crowd.faults == []
    assert set(crowd.answers) == {202}
    assert server.client.xlen("jobs:stream") == len(crowd.answers)


async def test_a_connection_that_comes_between_two_gateways_waits(
    systemd: Systemd, settings: dict[str, str]
) -> None:
    crowd = Crowd(systemd.port)
    waiting = asyncio.create_task(crowd.visit())
    systemd.gateway(**settings)
    await waiting
    assert crowd.answers == [202]
