"""Helpers for tests of the image scripts: a store with shortcuts, and reads from Redis."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from typing import Any

from sluice.common.contracts.images import ErrorCode, ImageKeys, Stage, storage_key
from sluice.common.contracts.jobs import JobKeys
from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.scripts import IMAGE_SCRIPT
from sluice.common.features.images.store import ImageStore
from sluice.common.features.images.types import (
    CompletedUpload,
    ImageAnswer,
    ImageOutcome,
    NewImage,
    ProcessedImage,
    ProcessingAttempt,
    ProcessingFailure,
)
from sluice.common.jobs.limits import AdmissionLimits
from sluice.common.jobs.store import Fence
from sluice.common.redis.batching import ScriptBatcher
from tests.support.servers import Backend
from tests.support.store.base import RedisHarness, texts

OK, ALREADY = ImageAnswer.OK, ImageAnswer.ALREADY
MISSING, CONFLICT, LOST = ImageAnswer.MISSING, ImageAnswer.CONFLICT, ImageAnswer.LOST
ADMISSION = AdmissionLimits("workers", 1000, 600)
HOLD_MS = 60_000
RECORD_TTL_S = 100_000
STATUS_TTL_S = 3600
GROUP = "api-workers"
FAILED = ProcessingFailure(
    ErrorCode.VALIDATION_FAILED, "file too large", b'{"reason":"file_too_large"}'
)
#: The stages of the pipeline in order, with their progress.
STAGES = (Stage.VALIDATING, Stage.DECODING, Stage.PROCESSING, Stage.ENCODING, Stage.UPLOADING)
SHOWN = ("10", "30", "55", "75", "90")
RESULT_FIELDS = [
    "image_id", "status", "storage_key", "sha256", "etag", "file_size", "content_type",
    "original_width", "original_height", "processed_width", "processed_height", "processed_at",
]  # fmt: skip
FAILURE_FIELDS = ["image_id", "status", "error_code", "error_message", "failed_at"]
_NUMBERS = itertools.count(1)


def fresh_upload() -> str:
    return f"{next(_NUMBERS):016x}"


def new_image(**changes: Any) -> NewImage:
    fields: dict[str, Any] = {"image_id": str(uuid.uuid4()), "ttl_s": RECORD_TTL_S}
    return NewImage(**{**fields, **changes})


def uploaded(image_id: str, upload_id: str, **changes: Any) -> CompletedUpload:
    fields: dict[str, Any] = {
        "job_id": str(uuid.uuid4()),
        "content_type": "image/jpeg",
        "size_bytes": 1234,
        "sha256": "ab" * 32,
    }
    return CompletedUpload(image_id, upload_id, **{**fields, **changes})


def processed(image_id: str, content: str = "x") -> ProcessedImage:
    return ProcessedImage(
        storage_key=storage_key(image_id),
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        etag=hashlib.md5(content.encode()).hexdigest(),
        file_size=245_760,
        content_type="image/webp",
        original_width=4032,
        original_height=3024,
        processed_width=1920,
        processed_height=1440,
        details=b'{"dominant_color":"#aabbcc"}',
    )


def result_fields(image_id: str, content: str = "foreign") -> dict[str, str]:
    """A result entry of a third-party pipeline."""
    made = processed(image_id, content)
    values = (image_id, "processed", made.storage_key, made.sha256, made.etag, "245760")
    values += ("image/webp", "4032", "3024", "1920", "1440", "2026-02-24T10:00:00Z")
    return dict(zip(RESULT_FIELDS, values, strict=True))


def failure_fields(image_id: str) -> dict[str, str]:
    values = (image_id, "failed", "DECODE_FAILED", "it is broken", "2026-02-24T10:00:00Z")
    return dict(zip(FAILURE_FIELDS, values, strict=True))


class ImageHarness(RedisHarness):
    """An image store on one backend."""

    def __init__(
        self, backend: Backend, keys: JobKeys, batcher: type[ScriptBatcher] = ScriptBatcher
    ) -> None:
        self.backend = backend
        self.jobs = keys
        self.keys = ImageKeys(keys.tag)
        self.client = backend.client()
        self.batcher = batcher(backend.wire(), keys, IMAGE_SCRIPT, retry_for_s=5.0)
        self.store = ImageStore(self.client, keys, self.batcher)
        self.reader = ImageReader(self.client, self.keys)

    # -- shortcuts -------------------------------------------------------------------------

    async def create(self, **changes: Any) -> str:
        new = new_image(**changes)
        made = await self.store.create(new)
        assert (made.answer, made.facts) == (OK, {"image_id": new.image_id})
        return new.image_id

    async def claim(self, image_id: str, hold_ms: int = HOLD_MS) -> str:
        """Claim an upload; returns its id."""
        upload_id = fresh_upload()
        assert (await self.store.claim(image_id, upload_id, hold_ms)).answer is OK
        return upload_id

    async def submit(self, image_id: str, upload_id: str) -> ProcessingAttempt:
        """Submit an upload; returns the first attempt of its job."""
        made = await self.store.submit(uploaded(image_id, upload_id), ADMISSION)
        assert made.answer is OK, made
        return await self.hold(image_id, upload_id, str(made.facts["job_id"]))

    async def hold(
        self, image_id: str, upload_id: str, job_id: str, attempt: int = 1
    ) -> ProcessingAttempt:
        """An attempt of the core job, as BEGIN creates it."""
        lease, token = self.jobs.lease(job_id), f"token-{attempt}"
        mapping = {"attempt": str(attempt), "token": token}
        await self.client.hset(lease, mapping=mapping)
        return ProcessingAttempt(image_id, upload_id, Fence(lease, attempt, token))

    async def processing(self, **changes: Any) -> ProcessingAttempt:
        """An image that a worker is processing."""
        image_id = await self.create(**changes)
        return await self.submit(image_id, await self.claim(image_id))

    async def succeed(self, held: ProcessingAttempt, content: str = "x") -> ImageOutcome:
        return await self.store.succeed(held, processed(held.image_id, content))

    async def fail(self, held: ProcessingAttempt) -> ImageOutcome:
        return await self.store.fail(held, FAILED)

    async def failed(self, **changes: Any) -> ProcessingAttempt:
        """A failed image."""
        held = await self.processing(**changes)
        assert (await self.fail(held)).answer is OK
        return held

    async def third_party_entry(self, fields: dict[str, str]) -> str:
        """Add a third-party result entry, and read it with the group; returns its id."""
        results = self.keys.results
        groups: Any = []
        if await self.client.exists(results):
            groups = await self.client.xinfo_groups(results)
        if not groups:
            await self.client.xgroup_create(results, GROUP, id="0", mkstream=True)
        entry_id = await self.client.xadd(results, fields)  # type: ignore[arg-type]
        await self.client.xreadgroup(GROUP, "api-1", {results: ">"})
        return str(entry_id.decode())

    # -- reads -----------------------------------------------------------------------------

    async def record(self, image_id: str) -> dict[str, str]:
        return texts(await self.client.hgetall(self.keys.record(image_id)))

    async def status(self, image_id: str) -> dict[str, str]:
        return texts(await self.client.hgetall(self.keys.status(image_id)))

    async def stage(self, image_id: str) -> tuple[str, str]:
        shown = await self.status(image_id)
        return shown["stage"], shown["progress"]

    async def guard(self, image_id: str) -> bytes | None:
        return await self.client.get(self.keys.upload(image_id))  # type: ignore[no-any-return]

    async def entries(self) -> list[tuple[str, dict[str, str]]]:
        found = await self.client.xrange(self.keys.results)
        return [(entry_id.decode(), texts(fields)) for entry_id, fields in found]

    async def pending(self) -> int:
        return int((await self.client.xpending(self.keys.results, GROUP))["pending"])

    async def under_way(self) -> list[str]:
        return [raw.decode() for raw in await self.client.zrange(self.keys.inflight, 0, -1)]

    async def ttls(self, image_id: str) -> tuple[int, int, int]:
        """TTLs of record, status and guard, rounded up; -2 for a missing key."""
        keys = (self.keys.record, self.keys.status, self.keys.upload)
        found = [as_set(await self.client.ttl(key(image_id))) for key in keys]
        return found[0], found[1], found[2]

    async def shorten(self, image_id: str) -> None:
        """Let all its keys expire soon."""
        for key in (self.keys.record, self.keys.status, self.keys.upload):
            await self.client.expire(key(image_id), 100)

    async def over(self, image_id: str) -> None:
        """Let the upload's deadline pass."""
        await self.client.hset(self.keys.record(image_id), "upload_deadline_ms", "1")

    async def without_ttl(self) -> list[bytes]:
        """Keys without a TTL, except trimmed ones."""
        capped = {self.keys.results.encode(), self.keys.dead_results.encode()}
        capped |= {self.jobs.queue.encode(), self.jobs.index.encode()}
        found = set(await self.client.keys("*")) - capped
        return [key for key in found if await self.client.ttl(key) < 0]


def as_set(ttl: int) -> int:
    """The original TTL, allowing for the time that the test took."""
    given = (value for value in (STATUS_TTL_S, RECORD_TTL_S) if value - 60 < ttl <= value)
    return next(given, ttl)
