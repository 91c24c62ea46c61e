"""One round of one system: start, latency, enqueue, drain, verification."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from bench import machine
from bench.jobs import VerificationError
from bench.peers.field import System
from bench.post import free_port, gateway_env, is_listening
from bench.process import Program, program, wait_until
from bench.server import BenchRedis

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.005
#: Commands of the benchmark itself and of opening connections.
_NOT_WORK = ("info", "config", "client", "hello", "flushall", "dbsize", "xinfo", "exists")
_SHOWN_OUTPUT = 400


@dataclass(frozen=True)
class Effort:
    """Work of one system in one round."""

    jobs: int
    warmup: int
    latencies: int
    #: Time limit of a round in seconds.
    cap_s: float

    @property
    def all_jobs(self) -> int:
        """Number of jobs with a result at the end."""
        return 1 + self.warmup + self.first_latencies + self.latencies + self.jobs

    @property
    def first_latencies(self) -> int:
        """Warm-up jobs that do not count."""
        return max(self.latencies // 10, 1)


@dataclass(frozen=True)
class Round:
    """Results of one system in one round; microseconds, bytes and commands are per job."""

    jobs: int
    drain_per_s: float
    enqueue_per_s: float
    latencies_ms: list[float]
    worker_cpu_us: float
    redis_cpu_us: float
    enqueue_commands: float
    work_commands: float
    enqueue_bytes: float
    work_bytes: float
    redis_memory_bytes: float
    drained_mb: float
    processes: int
    #: CPU microseconds of Redis per enqueued job, and of the gateway if there is one.
    enqueue_redis_us: float
    gateway_us: float


@dataclass(frozen=True)
class Processes:
    """The processes of one round."""

    worker: Program
    client: Program
    gateway: Program | None

    def gateway_cpu_s(self) -> float:
        return 0.0 if self.gateway is None else machine.cpu_seconds(self.gateway.pid)


class Failed(Exception):
    """A system did not finish a round."""


def measure(redis: BenchRedis, system: System, effort: Effort) -> Round:
    """Runs one round; raises Failed on any error."""
    redis.clear()
    with tempfile.TemporaryFile("w+") as output:
        try:
            with _system(redis, system, output) as processes, _cap(effort, processes):
                found = _measure(redis, system, effort, processes)
            return replace(found, redis_memory_bytes=_bytes_of_keys(redis) / effort.all_jobs)
        except (RuntimeError, OSError, VerificationError, KeyError) as error:
            output.seek(0)
            last = output.read()[-_SHOWN_OUTPUT:].strip()
            raise Failed(f"{error}; last output: {last}" if last else str(error)) from error


def _measure(redis: BenchRedis, system: System, effort: Effort, processes: Processes) -> Round:
    worker, client = processes.worker, processes.client
    client.receive()  # connected
    client.ask(do="latency", count=1)  # the worker is ready
    _work(redis, system, effort.warmup, worker, client)
    client.ask(do="latency", count=effort.first_latencies)
    latencies = client.ask(do="latency", count=effort.latencies)["ms"]
    _check(client, effort.warmup)

    tree = machine.with_children(worker.pid)
    _signal(tree, signal.SIGSTOP)
    before = _Counters.now(redis)
    gateway_s = processes.gateway_cpu_s()
    seconds = client.ask(do="enqueue", count=effort.jobs)["seconds"]
    gateway_s = processes.gateway_cpu_s() - gateway_s
    filled = _Counters.now(redis)
    expected_keys = before.keys + effort.jobs
    cpu = sum(map(machine.cpu_seconds, tree))
    started = time.perf_counter()
    _signal(tree, signal.SIGCONT)
    _wait_drained(redis, system, worker, expected_keys)
    drained_s = time.perf_counter() - started
    cpu = sum(map(machine.cpu_seconds, tree)) - cpu
    after = _Counters.now(redis)
    drained_mb = memory_mb(worker.pid)
    _check(client, effort.jobs)
    count = effort.jobs
    return Round(
        jobs=count,
        drain_per_s=count / drained_s,
        enqueue_per_s=count / seconds,
        latencies_ms=latencies,
        worker_cpu_us=cpu / count * 1e6,
        redis_cpu_us=(after.cpu_s - filled.cpu_s) / count * 1e6,
        enqueue_commands=(filled.commands - before.commands) / count,
        work_commands=(after.commands - filled.commands) / count,
        enqueue_bytes=(filled.network - before.network) / count,
        work_bytes=(after.network - filled.network) / count,
        redis_memory_bytes=0.0,
        drained_mb=drained_mb,
        processes=len(tree),
        enqueue_redis_us=(filled.cpu_s - before.cpu_s) / count * 1e6,
        gateway_us=gateway_s / count * 1e6,
    )


@dataclass(frozen=True)
class _Counters:
    """Counters of Redis at one moment."""

    cpu_s: float
    commands: int
    network: int
    keys: int

    @classmethod
    def now(cls, redis: BenchRedis) -> _Counters:
        stats = redis.info("stats")
        calls = redis.command_calls()
        return cls(
            redis.cpu_seconds(),
            sum(n for name, n in calls.items() if not name.startswith(_NOT_WORK)),
            int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"]),
            redis.pipe.one("DBSIZE"),
        )


def _bytes_of_keys(redis: BenchRedis) -> int:
    """Bytes of all keys. Used memory would include connection buffers, which vary."""
    keys = redis.pipe.one("KEYS", "*")
    sizes = redis.pipe.ask([("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys])
    return sum(size or 0 for size in sizes)


def _work(redis: BenchRedis, system: System, count: int, worker: Program, client: Program) -> None:
    keys: int = redis.pipe.one("DBSIZE")
    client.ask(do="enqueue", count=count)
    _wait_drained(redis, system, worker, keys + count)


def _check(client: Program, count: int) -> None:
    right = client.ask(do="check")["right"]
    if right != count:
        raise VerificationError(f"{right} of {count} results are correct")


def _wait_drained(redis: BenchRedis, system: System, worker: Program, expected_keys: int) -> None:
    wait_until(
        "the queue to drain",
        lambda: system.drained(redis.pipe, expected_keys),
        while_alive=worker,
        timeout_s=600,
        every_s=_POLL_S,
    )


def memory_mb(pid: int) -> float:
    """Resident memory; for several processes, the sum of their proportional shares."""
    tree = machine.with_children(pid)
    return machine.resident_mb(pid) if len(tree) == 1 else sum(map(machine.share_mb, tree))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


@contextmanager
def _system(redis: BenchRedis, system: System, output: IO[str]) -> Iterator[Processes]:
    env = environment(redis, system)
    with ExitStack() as stack:
        gateway = None
        if system.gateway:
            port = free_port()
            env["PEER_GATEWAY_URL"] = f"http://127.0.0.1:{port}"
            gateway = stack.enter_context(program("sluice.gateway", env=gateway_env(redis, port)))
            wait_until("the gateway", lambda: is_listening(port), while_alive=gateway)
        worker = stack.enter_context(
            child(system.worker, f"{system.title}'s worker", env, output, talks=False)
        )
        client = stack.enter_context(child(system.client, f"{system.title}'s client", env, output))
        yield Processes(worker, client, gateway)


def environment(redis: BenchRedis, system: System) -> dict[str, str]:
    """Environment of the system's processes."""
    data_dir = redis.socket_path.with_name("sluice")
    known = {"PEER_REDIS_URL": redis.url, "REDIS_URL": redis.url, "SLUICE_DATA_DIR": str(data_dir)}
    return {**known, **system.env}


@contextmanager
def child(
    command: tuple[str, ...], name: str, env: dict[str, str], output: IO[str], *, talks: bool = True
) -> Iterator[Program]:
    """Runs a command in its own process group and kills the whole group afterwards."""
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        env={**os.environ, **env},
        stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
        stdout=subprocess.PIPE if talks else output,
        stderr=output,
        text=True,
        start_new_session=True,
    )
    running = Program(process, name)
    try:
        yield running
    finally:
        _end_group(process.pid)
        running.stop()


def _end_group(pid: int) -> None:
    with suppress(ProcessLookupError):  # already exited
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def _cap(effort: Effort, processes: Processes) -> Iterator[None]:
    """Kills both after the time limit, so that everything that waits for them fails."""

    def end() -> None:
        for each in (processes.client, processes.worker):
            _end_group(each.pid)

    timer = threading.Timer(effort.cap_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
