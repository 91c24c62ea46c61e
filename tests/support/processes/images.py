"""Real gateways and workers for images."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import redis

from tests.support.processes.base import Processes, Spawn
from tests.support.processes.worker import wait_until

#: Stages in order, with their progress.
STAGES = {
    "queued": 0, "validating": 10, "decoding": 30, "processing": 55, "encoding": 75,
    "uploading": 90, "done": 100,
}  # fmt: skip

#: Handlers of a worker that waits for a file before it processes images.
SLOW_IMAGES = """
from tests.support.worker import image_processes
from worker.features.images import processor

processor.process = image_processes.wait_for_go

def register(registry):
    pass
"""


class ImageProcesses(Processes):
    """A gateway and any number of workers; spool and store are below one directory."""

    WORKER: ClassVar[dict[str, object]] = {
        "image_reconcile_s": 0.3, "image_parallel": 2, "retry_backoff_s": 0.05,
    }  # fmt: skip

    def __init__(self, redis_url: str, spawn: Spawn, directory: Path, **settings: str) -> None:
        super().__init__(redis_url, spawn, directory, **settings)
        self._images = directory / "data" / "images"
        self.client: Any = redis.Redis.from_url(redis_url)
        (directory / "slow_images.py").write_text(SLOW_IMAGES)

    def close(self) -> None:
        super().close()
        self.client.close()

    # -- over HTTP -------------------------------------------------------------------------

    def create(self, **options: Any) -> str:
        answer = self.request("POST", "/v1/images", options)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["image_id"])

    def put(self, image_id: str, data: bytes, content_type: str = "image/jpeg") -> int:
        headers = {"Content-Type": content_type}
        return self.request(
            "PUT", f"/v1/images/{image_id}/upload", data, headers=headers
        ).status_code

    def upload(self, data: bytes, content_type: str = "image/jpeg") -> str:
        image_id = self.create()
        assert self.put(image_id, data, content_type) == 202
        return image_id

    def image(self, image_id: str) -> dict[str, Any]:
        answer = self.request("GET", f"/v1/images/{image_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def ended(self, image_id: str) -> dict[str, Any]:
        wait_until(lambda: self.image(image_id)["status"] in ("processed", "failed"))
        return self.image(image_id)

    # -- contents of Redis and of the disk -----------------------------------------------------

    def record(self, image_id: str) -> dict[str, str]:
        found = self.client.hgetall(f"image:status:{image_id}")
        return {name.decode(): value.decode() for name, value in found.items()}

    def entries(self, image_id: str) -> list[dict[str, str]]:
        entries = [
            {name.decode(): value.decode() for name, value in fields.items()}
            for _, fields in self.client.xrange("image:result")
        ]
        return [entry for entry in entries if entry["image_id"] == image_id]

    def has_no_pending_jobs(self) -> bool:
        return bool(self.client.xpending("jobs:stream", "workers")["pending"] == 0)

    def spooled(self) -> list[str]:
        directory = self._images / "spool"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def stored(self, image_id: str) -> bytes | None:
        path = self._images / "store" / "images" / f"{image_id}.webp"
        return path.read_bytes() if path.exists() else None

    def go(self) -> None:
        """Lets slow workers continue."""
        (self._images / "go").touch()

    def wait_for_starts(self, count: int = 1) -> None:
        wait_until(lambda: len(list(self._images.glob("began-*"))) >= count)

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
        content = self.request("GET", f"/v1/images/{image_id}/content")
        assert (content.status_code, content.content) == (200, stored)
        assert content.headers["content-type"] == "image/webp"
        assert self.record(image_id)["stage"] == "done"
        wait_until(lambda: self.spooled() == [])
        assert self.client.zcard("image:inflight") == 0
        return image
