"""`POST /v1/jobs` against an empty FastAPI route with the same body, round by round."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bench import machine
from bench.jobs import KEYS, VerificationError
from bench.process import Program, program, wait_until
from bench.scale import Scale
from bench.server import BenchRedis

CONNECTIONS = 64
_WARMUP_REQUESTS = 500


@dataclass(frozen=True)
class Posts:
    """One timed round of requests."""

    requests_per_s: float
    server_cpu_us: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def gateway_env(redis: BenchRedis, port: int) -> dict[str, str]:
    """Settings of the gateway: the defaults, without backpressure and access logs."""
    return {
        "REDIS_URL": redis.url, "HOST": "127.0.0.1", "PORT": str(port), "LOG_LEVEL": "warning",
        "BACKPRESSURE_MAX_BACKLOG": "1000000000",
    }  # fmt: skip


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> dict[str, list[Posts]]:
    """Alternating rounds; both servers run all the time, the idle one costs nothing."""
    redis.clear()
    rounds: dict[str, list[Posts]] = {"ours": [], "empty": []}
    ours_port, empty_port = free_port(), free_port()
    with ExitStack() as stack:
        ours = stack.enter_context(program("sluice.gateway", env=gateway_env(redis, ours_port)))
        empty = stack.enter_context(program("bench.empty_app", str(empty_port)))
        loads = {}
        for name, server, port in (("ours", ours, ours_port), ("empty", empty, empty_port)):
            wait_until(name, lambda port=port: is_listening(port), while_alive=server)  # type: ignore[misc]
            load = stack.enter_context(program("bench.load", str(port), str(CONNECTIONS)))
            load.receive()
            load.ask(requests=_WARMUP_REQUESTS)
            loads[name] = (server, load)
        for number in range(1, scale.rounds + 1):
            for name, (server, load) in loads.items():
                redis.pipe.one("FLUSHALL", "SYNC")
                rounds[name].append(_round(server, load, scale.requests))
                if name == "ours":
                    _verify(redis, scale.requests)
            last_ours, last_empty = rounds["ours"][-1], rounds["empty"][-1]
            progress(
                f"post {number}/{scale.rounds}: ours {last_ours.requests_per_s:,.0f} requests/s "
                f"({last_ours.server_cpu_us:.0f} us CPU), empty route "
                f"{last_empty.requests_per_s:,.0f} ({last_empty.server_cpu_us:.0f} us); "
                f"ours/empty {last_ours.requests_per_s / last_empty.requests_per_s:.2f}"
            )
    return rounds


def _round(server: Program, load: Program, requests: int) -> Posts:
    cpu = machine.cpu_seconds(server.pid)
    answer = load.ask(requests=requests)
    cpu = machine.cpu_seconds(server.pid) - cpu
    if answer["accepted"] != requests:
        raise VerificationError(f"{answer['accepted']} of {requests} requests were accepted")
    return Posts(requests / answer["seconds"], cpu / requests * 1e6)


def _verify(redis: BenchRedis, requests: int) -> None:
    """As many queue messages, job hashes and event streams as requests."""
    queued, keys = redis.pipe.ask([("XLEN", KEYS.queue), ("DBSIZE",)])
    if queued != requests or keys < 2 * requests:
        raise VerificationError(f"{requests} requests left {queued} messages and {keys} keys")
