"""A worker that processes images within the test's process, with real child processes."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.storage.spool import Spool
from sluice.common.features.images.types import CompletedUpload, ImageAnswer, NewImage
from sluice.common.jobs.limits import AdmissionLimits
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.features.images import service as image_service
from sluice.worker.features.images.service import ImageService
from sluice.worker.handlers import tool
from sluice.worker.registry import Registry
from tests.support.files import photos
from tests.support.store.base import texts
from tests.support.store.images import FAILURE_FIELDS
from tests.support.waiting import eventually
from tests.support.worker.harness import WorkerHarness

STAGES = ["validating", "decoding", "processing", "encoding", "uploading"]


def photo(kind: str = "jpeg", seed: int = 7, size: tuple[int, int] = (160, 120)) -> bytes:
    """A photograph as from a camera."""
    return photos.encoded(photos.scene(*size, seed=seed), kind)


def image_settings(home: Path, **given: Any) -> WorkerSettings:
    """Settings of a worker below a directory; no face detection unless configured."""
    given.setdefault("image_detector", "none")
    return WorkerSettings(sluice_data_dir=str(home), image_parallel=2, **given)


def registry_of(settings: WorkerSettings) -> Registry:
    """A registry that only processes images."""
    registry = Registry()
    tool.add_handler(registry)
    image_service.add_service(registry, settings)
    return registry


class ImageWorker(WorkerHarness):
    """A worker with images, and the gateway's operations on them."""

    def __init__(self, home: Path, registry: Registry, *worker: Any, **options: Any) -> None:
        backend, keys, identity = worker
        super().__init__(backend, keys, identity, registry, **options)
        self.registry = registry
        self.images = self.consumer.images
        self.image_reader = ImageReader(self.client, self.images.keys)
        self.home = home / "images"
        self.spool = Spool(self.home / "spool")
        self.telling: dict[str, Any] = {}

    @property
    def service(self) -> ImageService:
        [found] = [each for each in self.registry.services if isinstance(each, ImageService)]
        return found

    async def open(self, *, read: bool = True) -> None:
        """Start as a worker does."""
        if not await self.client.exists(self.keys.queue):
            await self.group()
        services = self.services
        self.telling = services.heartbeat_fields
        for service in self.registry.services:
            await service.start(services)
        if read:
            self.start(recover=True)

    async def close(self) -> None:
        await super().close()
        for service in self.registry.services:
            await service.close()

    # -- as a gateway ----------------------------------------------------------------------

    async def create(self, **new: Any) -> str:
        image_id = str(uuid.uuid4())
        outcome = await self.images.create(NewImage(image_id, 100_000, **new))
        assert outcome.answer is ImageAnswer.OK
        return image_id

    async def upload(
        self,
        data: bytes | None = None,
        content_type: str = "image/jpeg",
        *,
        image_id: str = "",
        keep_file: bool = True,
        **new: Any,
    ) -> str:
        """Create an image, of a photo by default, whose job is queued; returns its id."""
        data = photo() if data is None else data
        image_id = image_id or await self.create(**new)
        upload_id = uuid.uuid4().hex[:16]
        claimed = await self.images.claim(image_id, upload_id, 60_000)
        assert claimed.answer is ImageAnswer.OK, claimed
        digest = hashlib.sha256(data).hexdigest()
        if keep_file:
            file = self.spool.create(image_id, upload_id)
            file.write(data)
            assert file.commit() == (len(data), digest)
        job_id = str(uuid.uuid4())
        uploaded = CompletedUpload(image_id, upload_id, job_id, content_type, len(data), digest)
        admission = AdmissionLimits(self.worker.group, 10**6, 600)
        submitted = await self.images.submit(uploaded, admission)
        assert submitted.answer is ImageAnswer.OK, submitted
        return image_id

    def go(self) -> None:
        """Let the processes of `image_processes.wait_for_go` continue."""
        self.home.mkdir(exist_ok=True)
        (self.home / "go").touch()

    # -- results ---------------------------------------------------------------------------

    async def record(self, image_id: str) -> ImageRecord:
        record = await self.image_reader.record(image_id)
        assert record is not None
        return record

    async def image_ended(self, image_id: str, timeout_s: float = 30.0) -> ImageRecord:
        """Wait for the end of an image and of its job."""
        key = self.images.keys.record(image_id)

        async def ended() -> bool:
            return await self.client.hget(key, "status") in (b"processed", b"failed")

        await eventually(ended, timeout_s)
        record = await self.record(image_id)
        await self.settled(record.job_id)
        return record

    async def process(self, *upload: Any, **new: Any) -> Any:
        """Upload, and wait for the end."""
        return await self.image_ended(await self.upload(*upload, **new))

    async def shown(self, image_id: str) -> dict[str, str]:
        """`image:status:{image_id}`."""
        return texts(await self.client.hgetall(self.images.keys.status(image_id)))

    async def entries(self, image_id: str = "") -> list[dict[str, str]]:
        """Entries of the result stream, of one image or all."""
        found = [texts(raw) for _, raw in await self.client.xrange(self.images.keys.results)]
        return [entry for entry in found if image_id in ("", entry["image_id"])]

    async def stage_events(self, job_id: str) -> list[tuple[str, int]]:
        """Stages in the events of a core job, with the attempt that wrote them."""
        return [
            (data["stage"], data["attempt"])
            for kind, step, data in await self.parsed_events(job_id)
            if (kind, step) == ("progress", "worker.image")
        ]

    def spooled(self) -> list[str]:
        """Names of the files in the spool."""
        return sorted(path.name for path in self.spool.directory.glob("*"))

    def stored(self, image_id: str) -> bytes | None:
        """The object in the store."""
        path = self.home / "store" / "images" / f"{image_id}.webp"
        return path.read_bytes() if path.exists() else None

    async def failed(self, image_id: str, code: str) -> ImageRecord:
        """An image that has failed: checks that record, status and stream agree."""
        record = await self.image_ended(image_id)
        assert record.failure is not None, record
        assert record.failure.error_code == code, record.failure
        [entry] = await self.entries(image_id)
        assert list(entry) == FAILURE_FIELDS
        assert (entry["status"], entry["error_code"]) == ("failed", code)
        assert entry["error_message"] == record.failure.error_message
        shown = await self.shown(image_id)
        assert (shown["stage"], shown["progress"]) == ("failed", "-1")
        assert shown["error"] == record.failure.error_message
        await eventually(lambda: self.spooled() == [])
        assert await self.client.zcard(self.images.keys.inflight) == 0
        return record


ImageMaker = Callable[..., Any]
