"""Latency of tokens from the model server's socket to the SSE client.

Measured through worker, Redis and gateway, alternating with a client that calls the model server
directly.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from bench.post import free_port, gateway_env, is_listening
from bench.process import program, wait_until
from bench.scale import Scale
from bench.server import BenchRedis

_STAMP = re.compile(rb"(\d{12,}) ")
_BODY = {"messages": [{"role": "user", "content": "what time is it?"}], "stream": True}
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class FirstToken:
    """Token latencies in milliseconds."""

    first_p50_ms: float
    first_p95_ms: float
    all_p50_ms: float
    all_p95_ms: float


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> dict[str, FirstToken]:
    """Requests through_sluice Sluice and directly, alternating."""
    redis.clear()
    port, model_port = free_port(), free_port()
    worker_env = {"REDIS_URL": redis.url, "MODEL_URL": f"http://127.0.0.1:{model_port}"}
    through_sluice: list[list[float]] = []
    direct: list[list[float]] = []
    with (
        program("bench.token_server", str(model_port)) as model,
        program("sluice.gateway", env=gateway_env(redis, port)) as gateway,
        program("sluice.worker", env={**worker_env, "LOG_LEVEL": "warning"}) as worker,
    ):
        wait_until("the model server", lambda: is_listening(model_port), while_alive=model)
        wait_until("the gateway", lambda: is_listening(port), while_alive=gateway)
        _through_sluice(port)  # warm-up
        for _ in range(scale.answers):
            worker.check()
            through_sluice.append(_through_sluice(port))
            direct.append(_direct(model_port))
    found = {"ours": _summary(through_sluice), "direct": _summary(direct)}
    progress(
        f"first token: {found['ours'].first_p50_ms:.1f} ms through Sluice,  "
        f"{found['direct'].first_p50_ms:.1f} ms directly (p50 of {scale.answers})"
    )
    return found


def _through_sluice(port: int) -> list[float]:
    """Posts a chat job and follows its events; returns the token latencies in milliseconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        job = {"task": "chat", "payload": {"text": "what time is it?"}}
        connection.request("POST", "/v1/jobs", json.dumps(job), _JSON)
        job_id = json.load(connection.getresponse())["job_id"]
        connection.request("GET", f"/v1/jobs/{job_id}/events")
        return list(_latencies_ms(connection.getresponse(), b"event: done"))
    finally:
        connection.close()


def _direct(port: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(_BODY), _JSON)
        return list(_latencies_ms(connection.getresponse(), b"[DONE]"))
    finally:
        connection.close()


def _latencies_ms(answer: http.client.HTTPResponse, end: bytes) -> Iterator[float]:
    while line := answer.readline():
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for stamp in _STAMP.findall(line):
            yield (now_ns - int(stamp)) / 1e6
        if end in line:
            return


def _summary(answers: list[list[float]]) -> FirstToken:
    firsts = sorted(tokens[0] for tokens in answers)
    every = sorted(ms for tokens in answers for ms in tokens)
    return FirstToken(median(firsts), _p95(firsts), median(every), _p95(every))


def _p95(values: list[float]) -> float:
    return values[min(len(values) * 95 // 100, len(values) - 1)]
