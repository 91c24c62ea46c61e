"""The history and the live page over real processes: restarts, deaths, two gateways, many pages."""

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

from common.contracts.stats import SECONDS, StatsKeys
from tests.backends import SYSTEM, RealServer, require_binary
from tests.gateway.conftest import CHAT
from tests.gateway.processes import PYTHON_M, GatewayProcess, RawStream
from tests.worker.processes import Process, spawner, wait_until

pytestmark = pytest.mark.process

RING = StatsKeys("jobs:stream").ring(SECONDS)
KEEPS = "this gateway keeps the history now"
#: Three seconds for the place to run out, one to see it, and more for a busy machine.
HANDOVER_S = 12.0

Start = Callable[..., GatewayProcess]


class DurableRedis(RealServer):
    """One with an append-only file, which can be stopped and started."""

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
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}") as client:
        return [client.post("/v1/jobs", json=CHAT).json()["job_id"] for _ in range(count)]


def stats(gateway: GatewayProcess) -> Any:
    return httpx.get(f"http://127.0.0.1:{gateway.port}/v1/stats", timeout=20).json()


def sampled(server: RealServer, count: int = 2) -> None:
    """Wait for more samples."""
    before = len(samples(server))
    wait_until(lambda: len(samples(server)) >= before + count, 30)


def test_the_history_outlasts_gateway_worker_and_redis(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    gateway, worker = start(), work()
    sampled(server)
    post(gateway, 20)
    wait_until(lambda: counted(server) == 20, 30)
    wait_until(lambda: any(fields[b"end_to_end"] for _, fields in samples(server)), 30)
    before = samples(server)
    gateway.stop()
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
    # And once more, with everybody at work.
    server.restart()
    sampled(server)
    post(gateway, 5)
    wait_until(lambda: counted(server) == 25, 30)


def test_two_gateways_write_each_second_once_and_lose_nothing(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    work()
    gateways = [start(), start()]
    sampled(server)
    assert [KEEPS in gateway.log for gateway in gateways].count(True) == 1
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


def test_when_the_keeper_is_killed_another_goes_on(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    work()
    gateways = [start(), start()]
    sampled(server)
    [keeper] = [gateway for gateway in gateways if KEEPS in gateway.log]
    [other] = [gateway for gateway in gateways if gateway is not keeper]
    keeper.stop(signal.SIGKILL)
    killed = time.monotonic()
    post(other, 10)
    wait_until(lambda: KEEPS in other.log, HANDOVER_S)
    assert time.monotonic() - killed < HANDOVER_S
    wait_until(lambda: counted(server) == 10, 30)


def test_a_keeper_that_stops_hands_over_at_once(server: DurableRedis, start: Start) -> None:
    gateways = [start(), start()]
    sampled(server)
    [keeper] = [gateway for gateway in gateways if KEEPS in gateway.log]
    [other] = [gateway for gateway in gateways if gateway is not keeper]
    keeper.stop()
    wait_until(lambda: KEEPS in other.log, HANDOVER_S)
    assert server.client.hlen(StatsKeys("jobs:stream").gateways) == 1


async def test_thirty_pages_cost_redis_no_more_than_one(server: DurableRedis, start: Start) -> None:
    gateway = start()
    streams: list[RawStream] = []
    rates: list[float] = []
    for number in (1, 29):
        for _ in range(number):
            streams.append(await RawStream.open(gateway.port, "/v1/stream"))
        await asyncio.sleep(2.0)  # what opening them cost is over
        before, at = commands(server), time.monotonic()
        await asyncio.sleep(4.0)
        rates.append((commands(server) - before) / (time.monotonic() - at))
    assert len(streams) == 30
    assert rates[1] < rates[0] * 1.2 + 2, rates
    connected: Any = server.client.client_list()
    assert len(connected) - 1 <= 8
    for stream in streams:
        await stream.close()
    await asyncio.sleep(1.0)
    before, at = commands(server), time.monotonic()
    await asyncio.sleep(4.0)
    alone = (commands(server) - before) / (time.monotonic() - at)
    assert alone < rates[0], "nobody is read for any more"


def commands(server: RealServer) -> int:
    info: Any = server.client.info("stats")
    return int(info["total_commands_processed"])


async def test_a_finished_job_is_seen_within_a_second(
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


def test_a_pause_outlasts_everything(
    server: DurableRedis, start: Start, work: Callable[[], Process]
) -> None:
    gateway, worker = start(), work()
    worker.wait_for_line("takes jobs")
    url = f"http://127.0.0.1:{gateway.port}/v1/queues"
    assert httpx.post(f"{url}/jobs:stream/pause", json={"why": "tea"}).status_code == 200
    worker.wait_for_line("no new jobs are taken: the queue is paused: tea")
    gateway.stop()
    worker.send_signal(signal.SIGTERM)
    worker.wait()
    server.restart()
    gateway, worker = start(), work()
    worker.wait_for_line("no new jobs are taken: the queue is paused: tea")
    [job_id] = post(gateway)
    url = f"http://127.0.0.1:{gateway.port}/v1"

    def held() -> bool:
        workers = httpx.get(f"{url}/workers").json()["workers"]
        return any(each["holding"] and each["paused"] for each in workers)

    wait_until(held, 30)
    assert httpx.get(f"{url}/jobs/{job_id}").json()["status"] == "queued"
    assert httpx.post(f"{url}/queues/jobs:stream/resume").status_code == 200
    wait_until(lambda: httpx.get(f"{url}/jobs/{job_id}").json()["status"] == "done", 30)
