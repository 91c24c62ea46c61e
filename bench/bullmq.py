"""BullMQ queues: Sluice's worker and Node's own worker on the same no-op jobs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench import bullmq_noop, machine
from bench.jobs import VerificationError
from bench.pipe import Word, pack
from bench.process import Program, program, wait_until
from bench.scale import Scale
from bench.server import BenchRedis
from sluice.common.contracts.bullmq import BullField, BullKeys
from sluice.common.features.bullmq import package
from tests.interop import install

#: The Node release to compare with: the current one.
RELEASE = "bullmq6"
CONCURRENCY = 20
_KEYS = BullKeys("bench")
_WORKER = Path(__file__).with_name("bullmq_worker.mjs")
_DATA = b'{"text":"' + b"sluice " * 27 + b'"}'
_POLL_S = 0.005

Start = Callable[[], AbstractContextManager[Program]]


@dataclass(frozen=True)
class BullDrain:
    """One timed and verified drain."""

    jobs_per_s: float
    worker_cpu_us: float
    redis_cpu_us: float
    resident_mb: float


@dataclass(frozen=True)
class Bullmq:
    """Alternating rounds."""

    ours: list[BullDrain]
    node: list[BullDrain]

    @property
    def ratio(self) -> float:
        """Jobs per second, Sluice ÷ Node."""
        pairs = zip(self.ours, self.node)
        return median([ours.jobs_per_s / node.jobs_per_s for ours, node in pairs])

    @property
    def memory_ratio(self) -> float:
        """Resident memory, Sluice ÷ Node."""
        pairs = zip(self.ours, self.node)
        return median([ours.resident_mb / node.resident_mb for ours, node in pairs])


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> Bullmq | None:
    """Alternating rounds; None if Node is not installed."""
    try:
        install.ensure()
    except install.NotInstalled as error:
        progress(f"bullmq: skipped: {error}")
        return None
    found = Bullmq([], [])
    for number in range(1, scale.rounds + 1):
        # The order changes in each round.
        turns = [
            (found.ours, lambda: _start_sluice(redis)),
            (found.node, lambda: _start_node(redis)),
        ]
        for rounds, start in turns if number % 2 else reversed(turns):
            rounds.append(_drain(redis, start, scale.warmup_jobs, scale.bullmq_jobs))
        ours, node = found.ours[-1], found.node[-1]
        progress(
            f"bullmq {number}/{scale.rounds}: ours {ours.jobs_per_s:,.0f} jobs/s "
            f"({ours.worker_cpu_us:.0f} us CPU, {ours.resident_mb:.0f} MB), Node "
            f"{node.jobs_per_s:,.0f} ({node.worker_cpu_us:.0f} us, {node.resident_mb:.0f} MB); "
            f"ours/Node {ours.jobs_per_s / node.jobs_per_s:.2f}"
        )
    return found


def _drain(redis: BenchRedis, start: Start, warmup: int, count: int) -> BullDrain:
    """Warms up a new worker, freezes it, fills the queue, times the drain and verifies the jobs."""
    redis.clear()
    with start() as worker:
        wait_until("the worker to wait for jobs", lambda: _is_waiting(redis), while_alive=worker)
        _fill(redis, warmup)
        _wait_completed(redis, worker, warmup)
        worker.pause()
        _fill(redis, count)
        redis_cpu, worker_cpu = redis.cpu_seconds(), machine.cpu_seconds(worker.pid)
        started = time.perf_counter()
        worker.resume()
        _wait_completed(redis, worker, warmup + count)
        seconds = time.perf_counter() - started
        worker_cpu = machine.cpu_seconds(worker.pid) - worker_cpu
        redis_cpu = redis.cpu_seconds() - redis_cpu
        resident_mb = machine.resident_mb(worker.pid)
        worker.kill()
    _verify(redis, warmup + count)
    return BullDrain(
        count / seconds, worker_cpu / count * 1e6, redis_cpu / count * 1e6, resident_mb
    )


def _start_sluice(redis: BenchRedis) -> AbstractContextManager[Program]:
    """`python -m worker.bullmq` with default settings."""
    settings = {
        "REDIS_URL": redis.url, "LOG_LEVEL": "error", "BULLMQ_QUEUES": _KEYS.queue,
        "BULLMQ_CONCURRENCY": str(CONCURRENCY), "WORKER_HANDLERS": bullmq_noop.__name__,
    }  # fmt: skip
    return program("sluice.worker.bullmq", env=settings)


@contextmanager
def _start_node(redis: BenchRedis) -> Iterator[Program]:
    port = urlsplit(redis.url).port
    command = ["node", str(_WORKER), str(install.NODE_DIR), RELEASE, str(port), _KEYS.queue]
    process = subprocess.Popen(
        [*command, str(CONCURRENCY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    running = Program(process, "Node's worker")
    try:
        yield running
    finally:
        running.stop()


def _fill(redis: BenchRedis, count: int) -> None:
    """Adds jobs with the script that every BullMQ producer calls."""
    call = package.build_add_call(_KEYS.prefix, _KEYS.queue, bullmq_noop.NAME, _DATA, {}, "")
    sha: bytes = redis.pipe.one("SCRIPT", "LOAD", package.script_source(call.script))
    command: tuple[Word, ...] = ("EVALSHA", sha, len(call.keys), *call.keys, *call.args)
    redis.pipe.push(pack([command]) * count)


def _is_waiting(redis: BenchRedis) -> bool:
    return any("cmd=bzpopmin" in line for line in redis.clients())


def _wait_completed(redis: BenchRedis, worker: Program, count: int) -> None:
    wait_until(
        "the queue to drain",
        lambda: redis.pipe.one("ZCARD", _KEYS.key("completed")) >= count,
        while_alive=worker,
        timeout_s=600,
        every_s=_POLL_S,
    )


def _verify(redis: BenchRedis, count: int) -> None:
    """Every job completed in one attempt, and no job is left."""
    left = redis.pipe.ask([("EXISTS", _KEYS.key(state)) for state in ("wait", "active")])
    if any(left):
        raise VerificationError("jobs are still waiting or running")
    ids = redis.pipe.one("ZRANGE", _KEYS.key("completed"), 0, -1)
    if len(ids) != count:
        raise VerificationError(f"{len(ids)} jobs completed, {count} were added")
    fields = (BullField.MADE, BullField.STARTED, BullField.RETURN_VALUE)
    commands: list[tuple[Word, ...]] = [
        ("HMGET", _KEYS.job(job_id.decode()), *fields) for job_id in ids
    ]
    for job_id, (made, started, value) in zip(ids, redis.pipe.ask(commands)):
        if (made, started) != (b"1", b"1") or json.loads(value) is not None:
            raise VerificationError(
                f"job {job_id!r}: {made} attempts made, {started} started, {value}"
            )
