"""Images: complete processing from upload to result, compared with a plain Pillow loop.

Also measures the gateway's response time meanwhile and the growth of the worker's memory.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench import machine, photographs
from bench.jobs import VerificationError
from bench.post import free_port, gateway_env, is_listening
from bench.process import Program, program, wait_until
from bench.scale import Scale
from bench.server import BenchRedis
from sluice.common.contracts.images import ImageKeys, ImageStatus

_PATH = "/v1/images"
_KEYS = ImageKeys()
_WIDTH, _QUALITY = 1920, 85
_TIMEOUT_S = 600.0
#: Share of the images after which memory is first measured: every process has worked and been
#: replaced by then.
_SETTLED = 1 / 3


@dataclass(frozen=True)
class Images:
    """Results; rounds alternate."""

    ours_per_s: list[float]
    raw_per_s: list[float]
    #: Latency of `/healthz` in milliseconds while large images are processed.
    healthz_p50_ms: float
    healthz_p99_ms: float
    #: Megabytes of the worker and its processes: after warm-up, and at the end.
    settled_mb: float
    last_mb: float
    memory_images: int

    @property
    def ratio(self) -> float:
        """Images per second, Sluice ÷ raw Pillow."""
        return median([ours / raw for ours, raw in zip(self.ours_per_s, self.raw_per_s)])


def run(redis: BenchRedis, scale: Scale, progress: Callable[[str], None]) -> Images:
    """Measures throughput in alternating rounds, then response time, then memory."""
    redis.clear()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        for name in ("large", "small"):
            (directory / name).mkdir()
        large = photographs.make(directory / "large", scale.images, photographs.LARGE)
        small = photographs.make(directory / "small", scale.images, photographs.SMALL)
        raw = stack.enter_context(program("bench.raw_images", str(_WIDTH), str(_QUALITY)))
        raw.receive()
        site = stack.enter_context(_site(redis, directory))
        site.process(large[:2])  # warm-up
        raw.ask(paths=[str(path) for path in large[:2]])
        ours_per_s: list[float] = []
        raw_per_s: list[float] = []
        for number in range(1, scale.image_rounds + 1):
            ours_per_s.append(len(large) / site.process(large))
            raw_s = raw.ask(paths=[str(path) for path in large])["seconds"]
            raw_per_s.append(len(large) / raw_s)
            progress(
                f"images {number}/{scale.image_rounds}: ours {ours_per_s[-1]:.2f} a second, raw "
                f"Pillow {raw_per_s[-1]:.2f}; ours/raw {ours_per_s[-1] / raw_per_s[-1]:.2f}"
            )
        health = _health_during(site, _repeat(large, scale.health_images))
        first = round(scale.memory_images * _SETTLED)
        site.process(_repeat(small, first))
        settled_mb = site.worker_mb()
        site.process(_repeat(small, scale.memory_images - first))
        found = Images(
            ours_per_s, raw_per_s, median(health), quantiles(health, n=100)[-1],
            settled_mb, site.worker_mb(), scale.memory_images,
        )  # fmt: skip
    progress(
        f"images: /healthz p99 {found.healthz_p99_ms:.1f} ms meanwhile; worker "
        f"{found.settled_mb:.0f} MB, after {found.memory_images} images {found.last_mb:.0f} MB"
    )
    return found


class _Site:
    """A gateway and a worker for images, without face detection."""

    def __init__(self, redis: BenchRedis, port: int, worker: Program) -> None:
        self._redis = redis
        self.port = port
        self._worker = worker

    def process(self, paths: Sequence[Path]) -> float:
        """Uploads all images and waits for the last result; returns the seconds."""
        before = self._results()
        started = time.perf_counter()
        connection = self._connect()
        image_ids = [_upload(connection, path) for path in paths]
        wait_until(
            "the images", lambda: self._results() >= before + len(image_ids),
            while_alive=self._worker, timeout_s=_TIMEOUT_S, every_s=0.005,
        )  # fmt: skip
        took_s = time.perf_counter() - started
        connection.close()  # idle for longer than the gateway's keep-alive timeout
        connection = self._connect()
        for image_id in image_ids:
            status, image = _ask(connection, "GET", f"{_PATH}/{image_id}")
            if status != 200 or image["status"] != ImageStatus.PROCESSED.value:
                raise VerificationError(f"image {image_id}: {status} {image}")
        connection.close()
        return took_s

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def worker_mb(self) -> float:
        """Memory of the worker and all its child processes."""
        return sum(machine.resident_mb(pid) for pid in machine.with_children(self._worker.pid))

    def _results(self) -> int:
        """Number of results ever written; the stream is trimmed."""
        reply = self._redis.pipe.ask([("EXISTS", _KEYS.results)])
        if not reply[0]:
            return 0
        reply_fields = self._redis.pipe.one("XINFO", "STREAM", _KEYS.results)
        stream_info = dict(zip(reply_fields[::2], reply_fields[1::2]))
        return int(stream_info.get(b"entries-added", stream_info[b"length"]))


@contextmanager
def _site(redis: BenchRedis, directory: Path) -> Iterator[_Site]:
    port = free_port()
    shared = {"SLUICE_DATA_DIR": str(directory)}
    worker_env = {
        "REDIS_URL": redis.url, "LOG_LEVEL": "warning", "AUDIT_EVERY_S": "0", "EMBEDDER": "off",
        "IMAGE_DETECTOR": "none", **shared,
    }  # fmt: skip
    with (
        program("sluice.gateway", env={**gateway_env(redis, port), **shared}) as gateway,
        program("sluice.worker", env=worker_env) as worker,
    ):
        wait_until("the gateway", lambda: is_listening(port), while_alive=gateway)
        yield _Site(redis, port, worker)


def _upload(connection: http.client.HTTPConnection, path: Path) -> str:
    status, image = _ask(connection, "POST", _PATH, b"{}", "application/json")
    if status != 201:
        raise VerificationError(f"image not created: {status} {image}")
    status, answer = _ask(connection, "PUT", image["upload_url"], path.read_bytes(), "image/jpeg")
    if status != 202:
        raise VerificationError(f"upload refused: {status} {answer}")
    return str(image["image_id"])


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes = b"",
    kind: str = "",
) -> tuple[int, dict[str, Any]]:
    connection.request(method, path, body or None, {"Content-Type": kind} if kind else {})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or b"{}")


def _health_during(site: _Site, paths: Sequence[Path]) -> list[float]:
    """Latencies of repeated `/healthz` requests in milliseconds while images are processed."""
    found: list[float] = []
    finished = threading.Event()

    def poll() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        while not finished.wait(0.01):
            started = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            found.append((time.perf_counter() - started) * 1000)
        connection.close()

    watcher = threading.Thread(target=poll)
    watcher.start()
    try:
        site.process(paths)
    finally:
        finished.set()
        watcher.join()
    return found


def _repeat(paths: Sequence[Path], count: int) -> list[Path]:
    return [paths[number % len(paths)] for number in range(count)]
