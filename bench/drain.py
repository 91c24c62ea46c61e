"""Worker drain: the Sluice worker, a naive worker and the Redis floor, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bench import machine
from bench.jobs import KEYS, Batch, create_group, is_drained, make_batch, verify
from bench.process import Program, program, wait_until
from bench.scale import Scale
from bench.server import DEFAULT_NODE_BYTES, SHIPPED_NODE_BYTES, BenchRedis

#: Commands that the Sluice worker sends; all others run inside its scripts.
_SENT_BY_SLUICE = frozenset({"eval", "evalsha", "xreadgroup", "xgroup|create"})
#: Commands of opening connections and of the benchmark itself.
_NOT_WORK = ("info", "config", "client", "hello", "xinfo", "flushall", "ping", "echo", "select")
_WARMUP_TAG, _MAIN_TAG = 1, 2
_POLL_S = 0.005
_MEMORY_SAMPLE = 200

Start = Callable[[], AbstractContextManager[Program]]


@dataclass(frozen=True)
class Drain:
    """One timed and verified drain."""

    jobs_per_s: float
    worker_cpu_us: float
    redis_cpu_us: float
    commands_per_job: float
    round_trips_per_job: float


@dataclass(frozen=True)
class Memory:
    """Bytes per finished job, including keys and overhead."""

    shipped_bytes: float
    default_bytes: float


def worker_env(redis: BenchRedis) -> dict[str, str]:
    """Settings of the Sluice worker: 16 concurrent jobs, and no lease that expires while it is
    paused.
    """
    return {
        "REDIS_URL": redis.url, "MAX_INFLIGHT": "16", "COUNT": "16", "CONSUMER": "bench",
        "LOG_LEVEL": "warning", "BLOCK_MS": "60000", "LEASE_MS": "600000",
    }  # fmt: skip


def start_sluice(redis: BenchRedis) -> AbstractContextManager[Program]:
    """`python -m worker.echo_worker` with default settings."""
    return program("sluice.worker.echo_worker", env=worker_env(redis))


def start_naive(redis: BenchRedis) -> AbstractContextManager[Program]:
    return program("bench.naive", redis.url)


def drain(redis: BenchRedis, start: Start, warmup: Batch, batch: Batch, *, ours: bool) -> Drain:
    """Warms up a new worker, freezes it, fills the queue, times the drain and verifies the jobs."""
    redis.clear()
    create_group(redis.pipe)
    with start() as worker:
        wait_until("the worker to read", lambda: _is_reading(redis), while_alive=worker)
        redis.pipe.push(warmup.packed)
        _wait_drained(redis, worker, warmup)
        worker.pause()
        redis.pipe.push(batch.packed)
        redis.pipe.one("CONFIG", "RESETSTAT")
        redis_cpu, worker_cpu = redis.cpu_seconds(), machine.cpu_seconds(worker.pid)
        started = time.perf_counter()
        worker.resume()
        _wait_drained(redis, worker, batch)
        seconds = time.perf_counter() - started
        worker_cpu = machine.cpu_seconds(worker.pid) - worker_cpu
        redis_cpu = redis.cpu_seconds() - redis_cpu
        calls = redis.command_calls()
        worker.kill()
    verify(redis.pipe, batch)
    count = len(batch.job_ids)
    work = {name: n for name, n in calls.items() if not name.startswith(_NOT_WORK)}
    sent = {name: n for name, n in work.items() if not ours or name in _SENT_BY_SLUICE}
    return Drain(
        jobs_per_s=count / seconds,
        worker_cpu_us=worker_cpu / count * 1e6,
        redis_cpu_us=redis_cpu / count * 1e6,
        commands_per_job=sum(work.values()) / count,
        round_trips_per_job=sum(sent.values()) / count,
    )


def drain_floor(redis: BenchRedis, floor: Program, batch: Batch) -> Drain:
    """The same jobs: their commands are packed in advance and piped into Redis."""
    redis.clear()
    create_group(redis.pipe)
    redis.pipe.push(batch.packed)
    redis_cpu, floor_cpu = redis.cpu_seconds(), machine.cpu_seconds(floor.pid)
    seconds = float(floor.ask()["seconds"])
    floor_cpu = machine.cpu_seconds(floor.pid) - floor_cpu
    redis_cpu = redis.cpu_seconds() - redis_cpu
    verify(redis.pipe, batch)
    count = len(batch.job_ids)
    return Drain(count / seconds, floor_cpu / count * 1e6, redis_cpu / count * 1e6, 12.0, 0.0)


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> dict[str, list[Drain]]:
    """Alternating rounds of all three."""
    warmup = make_batch(scale.warmup_jobs, _WARMUP_TAG)
    many, few = make_batch(scale.fast_jobs, _MAIN_TAG), make_batch(scale.naive_jobs, _MAIN_TAG)
    rounds: dict[str, list[Drain]] = {"ours": [], "naive": [], "floor": []}
    floor_args = (str(redis.socket_path), str(scale.fast_jobs), str(_MAIN_TAG))
    with program("bench.floor", *floor_args) as floor:
        floor.receive()
        for number in range(1, scale.rounds + 1):
            ours = drain(redis, lambda: start_sluice(redis), warmup, many, ours=True)
            naive = drain(redis, lambda: start_naive(redis), warmup, few, ours=False)
            limit = drain_floor(redis, floor, many)
            for name, result in (("ours", ours), ("naive", naive), ("floor", limit)):
                rounds[name].append(result)
            progress(
                f"drain {number}/{scale.rounds}: ours {ours.jobs_per_s:,.0f} jobs/s "
                f"({ours.worker_cpu_us:.0f} us CPU), naive {naive.jobs_per_s:,.0f} "
                f"({naive.worker_cpu_us:.0f} us), floor {limit.jobs_per_s:,.0f}; "
                f"ours/naive {ours.jobs_per_s / naive.jobs_per_s:.1f}"
            )
    return rounds


def run_memory(
    redis: BenchRedis, scale: Scale, progress: Callable[[str], None]
) -> dict[str, Memory]:
    """Bytes per finished job with Sluice's Redis settings and with the defaults."""
    warmup, batch = make_batch(16, _WARMUP_TAG), make_batch(scale.naive_jobs, _MAIN_TAG)
    starts: dict[str, Start] = {
        "ours": lambda: start_sluice(redis), "naive": lambda: start_naive(redis)
    }  # fmt: skip
    found: dict[str, dict[int, float]] = {name: {} for name in starts}
    for name, start in starts.items():
        for node_bytes in (SHIPPED_NODE_BYTES, DEFAULT_NODE_BYTES):
            redis.pipe.one("CONFIG", "SET", "stream-node-max-bytes", node_bytes)
            drain(redis, start, warmup, batch, ours=name == "ours")
            found[name][node_bytes] = _key_bytes(redis, batch)
        progress(
            f"memory: a finished job of {name} takes {found[name][SHIPPED_NODE_BYTES]:,.0f} bytes"
        )
    redis.pipe.one("CONFIG", "SET", "stream-node-max-bytes", SHIPPED_NODE_BYTES)
    return {
        name: Memory(sizes[SHIPPED_NODE_BYTES], sizes[DEFAULT_NODE_BYTES])
        for name, sizes in found.items()
    }


def _key_bytes(redis: BenchRedis, batch: Batch) -> float:
    sample = batch.job_ids[:: max(len(batch.job_ids) // _MEMORY_SAMPLE, 1)]
    keys = [key(job_id) for job_id in sample for key in (KEYS.job, KEYS.events, KEYS.lease)]
    sizes = redis.pipe.ask([("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys])
    return sum(size or 0 for size in sizes) / len(sample)


def _wait_drained(redis: BenchRedis, worker: Program, batch: Batch) -> None:
    wait_until(
        "the queue to drain",
        lambda: is_drained(redis.pipe, batch),
        while_alive=worker,
        timeout_s=600,
        every_s=_POLL_S,
    )


def _is_reading(redis: BenchRedis) -> bool:
    return any("cmd=xreadgroup" in line for line in redis.clients())
