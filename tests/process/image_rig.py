"""Real gateways and workers for images."""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.worker.processes import Process, wait_until

#: Stages in order, with their progress.
STAGES = {
    "queued": 0, "validating": 10, "decoding": 30, "processing": 55, "encoding": 75,
    "uploading": 90, "done": 100,
}  # fmt: skip

#: Handlers of a worker that waits for a file before it processes images.
SLOW = """
from tests.worker.features.images import process_stubs
from worker.features.images import processor

processor.process = process_stubs.wait_for_go

def register(registry):
    pass
"""


class ImageStage:
    """A gateway and any number of workers; spool and store are below one directory."""

    def __init__(
        self, redis_url: str, spawn: Callable[..., Process], folder: Path, **settings: str
    ) -> None:
        self._redis_url = redis_url
        self._spawn = spawn
        self._folder = folder
        self._settings = settings
        self.data = folder / "data"
        self.client = redis.Redis.from_url(redis_url)
        (folder / "slow_images.py").write_text(SLOW)
        self.gateways: list[GatewayProcess] = []
        self.open_gateway()

    def open_gateway(self) -> GatewayProcess:
        log = self._folder / f"gateway{len(self.gateways)}.log"
        given = {"REDIS_URL": self._redis_url, "PORT": "0", "SLUICE_DATA_DIR": str(self.data)}
        gateway = GatewayProcess(PYTHON_M, log, **given, **self._settings)
        self.gateways.append(gateway)
        return gateway.wait_until_listening()

    def worker(self, name: str, module: str = "worker", **settings: object) -> Process:
        worker = self._spawn(
            module,
            **{
                "redis_url": self._redis_url,
                "consumer": name,
                "lease_ms": 900,
                "block_ms": 50,
                "embedder": "off",
                "sluice_data_dir": str(self.data),
                "pythonpath": str(self._folder),
                "image_reconcile_s": 0.3,
                "image_detector": "none",
                "image_parallel": 2,
                "retry_backoff_s": 0.05,
                **self._settings,
                **settings,
            },
        )
        worker.wait_for_line(f"worker {name} takes jobs")
        return worker

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        self.client.close()

    # -- over HTTP -------------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = ""
    ) -> tuple[int, Any, bytes]:
        url = f"http://127.0.0.1:{self.gateways[-1].port}{path}"
        headers = {"Content-Type": content_type} if content_type else {}
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def create(self, **options: Any) -> str:
        status, _, body = self.request(
            "POST", "/v1/images", json.dumps(options).encode(), "application/json"
        )
        assert status == 201, body
        return str(json.loads(body)["image_id"])

    def put(self, image_id: str, data: bytes, content_type: str = "image/jpeg") -> int:
        status, _, _ = self.request("PUT", f"/v1/images/{image_id}/upload", data, content_type)
        return status

    def upload(self, data: bytes, content_type: str = "image/jpeg") -> str:
        image_id = self.create()
        assert self.put(image_id, data, content_type) == 202
        return image_id

    def image(self, image_id: str) -> dict[str, Any]:
        status, _, body = self.request("GET", f"/v1/images/{image_id}")
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def ended(self, image_id: str, timeout_s: float = 60) -> dict[str, Any]:
        """The image after it has ended."""
        deadline = time.monotonic() + timeout_s
        while (image := self.image(image_id))["status"] not in ("processed", "failed"):
            assert time.monotonic() < deadline, image
            time.sleep(0.02)
        return image

    # -- contents of Redis and of the disk -----------------------------------------------------

    def record(self, image_id: str) -> dict[str, str]:
        found: Any = self.client.hgetall(f"image:status:{image_id}")
        return {name.decode(): value.decode() for name, value in found.items()}

    def entries(self, image_id: str) -> list[dict[str, str]]:
        found: Any = self.client.xrange("image:result")
        entries = [
            {name.decode(): value.decode() for name, value in fields.items()} for _, fields in found
        ]
        return [entry for entry in entries if entry["image_id"] == image_id]

    def spooled(self) -> list[str]:
        directory = self.data / "images" / "spool"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def stored(self, image_id: str) -> bytes | None:
        path = self.data / "images" / "store" / "images" / f"{image_id}.webp"
        return path.read_bytes() if path.exists() else None

    def go(self) -> None:
        """Lets slow workers continue."""
        (self.data / "images" / "go").touch()

    def wait_for_starts(self, count: int = 1) -> None:
        """Waits until slow workers have started this many images."""
        wait_until(lambda: len(list((self.data / "images").glob("began-*"))) >= count)

    def check_complete(self, image_id: str) -> dict[str, Any]:
        """The image has ended successfully, and all records of it agree."""
        image = self.ended(image_id)
        assert image["status"] == "processed", image
        [entry] = self.entries(image_id)
        assert (entry["status"], len(entry)) == ("processed", 12)
        stored = self.stored(image_id)
        assert stored is not None
        assert entry["sha256"] == image["sha256"] == hashlib.sha256(stored).hexdigest()
        assert entry["etag"] == image["etag"] == hashlib.md5(stored).hexdigest()
        assert int(entry["file_size"]) == image["file_size"] == len(stored)
        status, headers, body = self.request("GET", f"/v1/images/{image_id}/content")
        assert (status, headers["content-type"], body) == (200, "image/webp", stored)
        assert self.record(image_id)["stage"] == "done"
        wait_until(lambda: self.spooled() == [])
        assert self.client.zcard("image:inflight") == 0
        return image
