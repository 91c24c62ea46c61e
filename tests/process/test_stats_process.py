"""History and live page with real processes: restarts, crashes, two gateways, many pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from common.contracts.stats import ONE_SECOND, StatsKeys
from tests.conftest import eventually
from tests.gateway.conftest import CHAT
from tests.gateway.processes import PYTHON_M, TIMEOUT_S, GatewayProcess, RawStream
from tests.support.backends import SYSTEM, RealServer, require_binary
from tests.worker.processes import Process, spawner, wait_until

pytestmark = pytest.mark.process

RING = StatsKeys("jobs:stream").ring(ONE_SECOND)
KEEPS = "this gateway takes the samples from now on"
LOST = "another gateway takes the samples from now on"
#: Three seconds for the lock to expire, one to detect it, and more for a busy machine.
HANDOVER_S = 30.0
#: Number of samples during which commands are counted.
SAMPLES = 3

Start = Callable[..., GatewayProcess]


class DurableRedis(RealServer):
    """A Redis with an append-only file that can be stopped and restarted."""

    def __init__(self, binary: str) -> None:
        super().__init__(binary, "--appendonly", "yes")

    def restart(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self.process.args, stdout=quiet, stderr=quiet)
        wait_until(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False


@pytest.fixture
def server() -> Iterator[DurableRedis]:
    server = DurableRedis(require_binary(SYSTEM))
    yield server
    server.close()


@pytest.fixture
def start(server: DurableRedis, tmp_path: Path) -> Iterator[Start]:
    started: list[GatewayProcess] = []

    def factory(**settings: str) -> GatewayProcess:
        named = {"PORT": "0", "REDIS_URL": server.url, **settings}
        gateway = GatewayProcess(PYTHON_M, tmp_path / f"gateway-{len(started)}", **named)
        started.append(gateway)
        return gateway.wait_until_listening()

    yield factory
    for gateway in started:
        gateway.close()


@pytest.fixture
def work(server: DurableRedis, tmp_path: Path) -> Iterator[Callable[[], Process]]:
    """Starts echo workers."""
    directory = tmp_path / "workers"
    directory.mkdir()
    for spawn in spawner(directory):

        def factory(spawn: Callable[..., Process] = spawn) -> Process:
            return spawn("worker.echo_worker", REDIS_URL=server.url, HEARTBEAT_S="1")

        yield factory


def samples(server: RealServer) -> list[tuple[int, dict[bytes, bytes]]]:
    found: Any = server.client.xrange(RING)
    return [(int(entry_id.split(b"-")[0]), fields) for entry_id, fields in found]


def counted(server: RealServer, name: bytes = b"done") -> int:
    return sum(int(fields[name] or 0) for _, fields in samples(server))


def post(gateway: GatewayProcess, count: int = 1) -> list[str]:
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=TIMEOUT_S) as client:
        return [client.post("/v1/jobs", json=CHAT).json()["job_id"] for _ in range(count)]


def stats(gateway: GatewayProcess) -> Any:
    return httpx.get(f"http://127.0.0.1:{gateway.port}/v1/stats", timeout=TIMEOUT_S).json()


def sampled(server: RealServer, count: int = 2) -> None:
    """Waits for more samples."""
    before = len(samples(server))
    wait_until(lambda: len(samples(server)) >= before + count, 30)


def keeps(gateway: GatewayProcess) -> bool:
    """True if the gateway holds the history lock, as far as it knows; a stalled one loses it."""
    return gateway.log.rfind(KEEPS) > gateway.log.rfind(LOST)


def keeper_and_other(gateways: list[GatewayProcess]) -> list[GatewayProcess]:
    wait_until(lambda: [keeps(gateway) for gateway in gateways].count(True) == 1)
    return sorted(gateways, key=keeps, reverse=True)


def test_the_history_survives_restarts_of_all_processes(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    gateway, worker = start(), work()
    sampled(server)
    post(gateway, 20)
    wait_until(lambda: counted(server) == 20, 30)
    wait_until(lambda: any(fields[b"end_to_end"] for _, fields in samples(server)), 30)
    gateway.stop()
    before = samples(server)
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    server.restart()
    assert samples(server) == before
    gateway, worker = start(), work()
    sampled(server)
    body = stats(gateway)
    assert sum(value or 0 for value in body["series"]["done"]) == 20
    assert body["series"]["ts"][0] == before[0][0]
    assert body["now"]["totals"]["done"] == 20
    times = [ts for ts, _ in samples(server)]
    assert times == sorted(set(times))
    # Again, with all processes running.
    server.restart()
    sampled(server)
    post(gateway, 5)
    wait_until(lambda: counted(server) == 25, 30)


def test_two_gateways_write_each_second_once(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    work()
    gateways = [start(), start()]
    sampled(server)
    keeper_and_other(gateways)
    for gateway in gateways * 3:
        post(gateway, 5)
    wait_until(lambda: counted(server) == 30, 30)
    times = [ts for ts, _ in samples(server)]
    assert len(set(times)) == len(times)
    assert all(ts % 1000 == 0 for ts in times)
    newest = samples(server)[-1][1]
    assert newest[b"gateways"] == b"2"
    ends = [stats(gateway)["now"]["totals"]["done"] for gateway in gateways]
    assert ends == [30, 30], "both show it"


def test_another_gateway_takes_over_from_a_killed_one(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    work()
    gateways = [start(), start()]
    sampled(server)
    keeper, other = keeper_and_other(gateways)
    keeper.stop(signal.SIGKILL)
    killed = time.monotonic()
    post(other, 10)
    wait_until(lambda: keeps(other), HANDOVER_S)
    assert time.monotonic() - killed < HANDOVER_S
    wait_until(lambda: counted(server) == 10, 30)


def test_a_stopping_gateway_hands_over_at_once(server: DurableRedis, start: Start) -> None:
    gateways = [start(), start()]
    sampled(server)
    keeper, other = keeper_and_other(gateways)
    keeper.stop()
    wait_until(lambda: keeps(other), HANDOVER_S)
    assert server.client.hlen(StatsKeys("jobs:stream").gateways) == 1


async def test_thirty_pages_need_no_more_commands_than_one(
    server: DurableRedis, start: Start
) -> None:
    gateway = start()
    streams = [await RawStream.open(gateway.port, "/v1/stream")]
    await opened_by(server, 1)
    one = max([await commands_per_sample(server) for _ in range(3)])
    streams += [await RawStream.open(gateway.port, "/v1/stream") for _ in range(29)]
    await opened_by(server, 30)
    thirty = await commands_per_sample(server)
    assert thirty < one * 1.2 + 2, (one, thirty)
    connected: Any = server.client.client_list()
    assert len(connected) - 1 <= 8
    for stream in streams:
        await stream.close()
    await opened_by(server, 0)
    assert await commands_per_sample(server) < one, "nothing is read without pages"


async def opened_by(server: RealServer, pages: int) -> None:
    """Waits until this many pages are open and the commands of opening them are over."""
    for _ in range(2):
        await sampled_once(server)
        await eventually(lambda: samples(server)[-1][1][b"sse_clients"] == b"%d" % pages, 30)


async def commands_per_sample(server: RealServer) -> float:
    """Commands of the gateway from one sample to the next. A gateway that stalls for some seconds
    sends no commands and takes no samples in that time.
    """
    await sampled_once(server)
    before, asked = commands(server), 0
    for _ in range(SAMPLES):
        asked += await sampled_once(server)
    return (commands(server) - before - asked - 1) / SAMPLES


async def sampled_once(server: RealServer) -> int:
    """Waits for the next sample; returns the number of commands for it."""
    length: Any = server.client.xlen(RING)
    for asked in range(2, 3000):
        if server.client.xlen(RING) > length:
            return asked
        await asyncio.sleep(0.02)
    raise AssertionError("no more samples are taken")


def commands(server: RealServer) -> int:
    info: Any = server.client.info("stats")
    return int(info["total_commands_processed"])


async def test_a_finished_job_is_counted_within_a_second(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    gateway = start()
    work().wait_for_line("takes jobs")
    stream = await RawStream.open(gateway.port, "/v1/stream?only=jobs")
    late_ms: list[float] = []
    loop = asyncio.get_running_loop()
    for _ in range(5):
        [job_id] = await loop.run_in_executor(None, post, gateway)
        while True:
            block = await stream.next()
            assert block is not None
            jobs = json.loads(block.data or "{}").get("jobs", ())
            ended = [job for job in jobs if job["job_id"] == job_id and job["status"] == "done"]
            if ended:
                late_ms.append(time.time() * 1000 - ended[0]["updated_ts"])
                break
    assert min(late_ms) < 1000, late_ms
    await stream.close()


def test_a_pause_survives_restarts(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    gateway, worker = start(), work()
    worker.wait_for_line("takes jobs")
    url = f"http://127.0.0.1:{gateway.port}/v1/queues/jobs:stream"
    paused = httpx.post(f"{url}/pause", json={"why": "tea"}, timeout=TIMEOUT_S)
    assert paused.status_code == 200
    worker.wait_for_line("no new jobs are taken: the queue is paused: tea")
    gateway.stop()
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    server.restart()
    gateway, worker = start(), work()
    worker.wait_for_line("no new jobs are taken: the queue is paused: tea")
    [job_id] = post(gateway)
    url = f"http://127.0.0.1:{gateway.port}/v1"
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:

        def held() -> bool:
            workers = client.get("/workers").json()["workers"]
            return any(each["holding"] and each["paused"] for each in workers)

        wait_until(held, 30)
        assert client.get(f"/jobs/{job_id}").json()["status"] == "queued"
        assert client.post("/queues/jobs:stream/resume").status_code == 200
        wait_until(lambda: client.get(f"/jobs/{job_id}").json()["status"] == "done", 30)
