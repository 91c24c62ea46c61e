"""SSE fan-out: Sluice's hub against one blocking XREAD per client."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bench import machine
from bench.post import free_port, gateway_env, is_listening
from bench.process import Program, program, wait_until
from bench.scale import Scale
from bench.server import BenchRedis

#: Sockets per client in the naive server: one to the client, one to Redis.
_FILES_PER_CLIENT = 2
_OTHER_FILES = 200
_WARMUP_EVENTS = 200


@dataclass(frozen=True)
class Fanout:
    """One server with many clients."""

    clients: int
    p50_ms: float
    p99_ms: float
    burst_events_per_s: float
    redis_connections: int
    resident_mb: float
    redis_cpu_us_per_event: float
    server_cpu_us_per_event: float


def measure(redis: BenchRedis, scale: Scale, clients: int, *, ours: bool) -> Fanout:
    """Opens the streams, publishes at a steady rate, then as fast as possible."""
    redis.clear()
    with program("bench.publisher", redis.url, str(clients)) as publisher:
        job_ids = publisher.receive()["job_ids"]
        connections_before = len(redis.clients())
        port = free_port()
        with (
            _serve(redis, port, ours=ours) as server,
            program("bench.watchers", str(port)) as watchers,
        ):
            wait_until("the hub", lambda: is_listening(port), while_alive=server)
            watchers.ask(job_ids=job_ids)
            _publish(publisher, watchers, _WARMUP_EVENTS, scale.events_per_s)
            redis_cpu, server_cpu = redis.cpu_seconds(), machine.cpu_seconds(server.pid)
            steady = _publish(publisher, watchers, scale.events, scale.events_per_s)
            redis_cpu = redis.cpu_seconds() - redis_cpu
            server_cpu = machine.cpu_seconds(server.pid) - server_cpu
            latencies = sorted(steady["latencies_ns"])
            burst = clients * scale.burst_per_watcher
            started = time.monotonic()
            last_at: float = _publish(publisher, watchers, burst, None)["last_at"]
            return Fanout(
                clients=clients,
                p50_ms=latencies[len(latencies) // 2] / 1e6,
                p99_ms=latencies[len(latencies) * 99 // 100] / 1e6,
                burst_events_per_s=burst / (last_at - started),
                redis_connections=len(redis.clients()) - connections_before,
                resident_mb=machine.resident_mb(server.pid),
                redis_cpu_us_per_event=redis_cpu / scale.events * 1e6,
                server_cpu_us_per_event=server_cpu / scale.events * 1e6,
            )


def run(
    redis: BenchRedis, scale: Scale, progress: Callable[[str], None], open_files: int
) -> dict[str, list[Fanout]]:
    """Runs all rounds, alternating; uses fewer clients if the open file limit is low."""
    most = (open_files - _OTHER_FILES) // _FILES_PER_CLIENT
    results: dict[str, list[Fanout]] = {"ours": [], "naive": []}
    for number in range(1, scale.fanout_rounds + 1):
        for clients in sorted({min(count, most) for count in scale.watchers}):
            for name in results:
                found = measure(redis, scale, clients, ours=name == "ours")
                results[name].append(found)
                progress(
                    f"fan-out {number}/{scale.fanout_rounds}, {clients} clients, {name}: p50 "
                    f"{found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms, burst "
                    f"{found.burst_events_per_s:,.0f} events/s, {found.redis_connections} Redis "
                    f"connections, {found.resident_mb:.0f} MB"
                )
    if most < max(scale.watchers):
        progress(f"fan-out: limited to {most} clients by the open file limit")
    return results


def _serve(redis: BenchRedis, port: int, *, ours: bool) -> AbstractContextManager[Program]:
    if ours:
        return program("sluice.gateway", env=gateway_env(redis, port))
    return program("bench.naive_sse", redis.url, str(port))


def _publish(
    publisher: Program, watchers: Program, events: int, per_s: int | None
) -> dict[str, Any]:
    watchers.send(events=events)
    publisher.send(events=events, per_s=per_s)
    received = watchers.receive()
    publisher.receive()
    return received
