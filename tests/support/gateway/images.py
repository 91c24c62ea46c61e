"""A gateway whose images a test processes with the worker's calls."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sluice.common.contracts.images import ErrorCode, ImageKeys, Stage, storage_key
from sluice.common.features.images.types import (
    ImageAnswer,
    ProcessedImage,
    ProcessingAttempt,
    ProcessingFailure,
)
from tests.support.gateway.asgi import JSON, Answer, Exchange
from tests.support.gateway.harness import Gateway

IMAGES = "/v1/images"
PNG = {"content-type": "image/png"}
KEYS = ImageKeys()
STAGES = (Stage.VALIDATING, Stage.DECODING, Stage.PROCESSING, Stage.ENCODING, Stage.UPLOADING)
#: Not a valid image: the gateway does not decode it.
BYTES = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
UNKNOWN = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
STORED = b"RIFF....WEBPVP8 stored"
BOUNDARY = "xYzZY"
DETAILS = {
    "source_format": "png",
    "source_frames": 1,
    "has_alpha": False,
    "detector": "centerface",
    "detections": [{"kind": "face", "x": 1, "y": 2, "width": 3, "height": 4, "score": 0.9}],
    "blur": "pixelate",
    "thumbhash": "1QcSHQRnh493V4dIh4eXh1h4kJUI",
    "dominant_color": "#3a6ea5",
    "timings_ms": {"decoding": 12.5},
}


def form(data: bytes = BYTES, kind: str | None = "image/png", name: str = "file") -> bytes:
    """A form with some other fields and a file."""
    declared = f"Content-Type: {kind}\r\n" if kind else ""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="album"\r\n\r\nsummer\r\n'
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n'
        f"{declared}\r\n"
    )
    tail = (
        f'\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name="after"\r\n\r\nx'
        f"\r\n--{BOUNDARY}--\r\n"
    )
    return head.encode() + data + tail.encode()


FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


class Unfinished(Exchange):
    """A request whose body the test sends in pieces, until it is complete or abandoned."""

    def __init__(self, *args: Any) -> None:
        self._news = asyncio.Event()
        self._whole = False
        super().__init__(*args)

    def send(self, chunk: bytes) -> None:
        """The next piece."""
        self._chunks.append(chunk)
        self._news.set()

    def finish(self) -> None:
        """End the body."""
        self._whole = True
        self._news.set()

    def hang_up_soon(self) -> None:
        """Disconnect without waiting for the app."""
        self._hung_up.set()
        self._news.set()

    async def _receive(self) -> dict[str, Any]:
        while not self._chunks:
            if self._whole:
                self._whole = False
                return {"type": "http.request", "body": b"", "more_body": False}
            if self._hung_up.is_set():
                return {"type": "http.disconnect"}
            await self._news.wait()
            self._news.clear()
        return {"type": "http.request", "body": self._chunks.popleft(), "more_body": True}


class Images:
    """The image API of one gateway, and the calls of a worker."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.client = gateway.client
        self.redis = gateway.redis
        self.state = gateway.state
        self.services = gateway.images

    # -- a client's calls ------------------------------------------------------------------

    async def post(self, body: object = None, **headers: str) -> Answer:
        return await self.client.send("POST", IMAGES, {**JSON, **headers}, body)

    async def create(self, body: object = None, **headers: str) -> str:
        answer = await self.post(body, **headers)
        assert answer.status == 201, answer
        return answer.json()["image_id"]

    def begin(
        self,
        image_id: str,
        chunks: Iterable[bytes],
        headers: dict[str, str] | None = None,
        method: str = "PUT",
    ) -> Exchange:
        """A running upload; without a length unless the headers have one."""
        target = f"{IMAGES}/{image_id}/upload"
        merged = {**PNG, **(headers or {})}
        if "content-length" not in merged:
            merged["transfer-encoding"] = "chunked"
        return self.client.begin(method, target, merged, chunks)

    def begin_unfinished(self, image_id: str, chunks: Iterable[bytes] = ()) -> Unfinished:
        """An upload whose body the test sends."""
        headers = {**PNG, "transfer-encoding": "chunked"}
        target = f"{IMAGES}/{image_id}/upload"
        begun = self.client.begin("PUT", target, headers, chunks, kind=Unfinished)
        assert isinstance(begun, Unfinished)
        return begun

    async def upload(
        self,
        image_id: str,
        data: bytes = BYTES,
        headers: dict[str, str] | None = None,
        method: str = "PUT",
    ) -> Answer:
        target = f"{IMAGES}/{image_id}/upload"
        return await self.client.send(method, target, {**PNG, **(headers or {})}, data)

    async def uploaded(self, **body: Any) -> str:
        """An image that waits for a worker."""
        image_id = await self.create(body)
        answer = await self.upload(image_id)
        assert answer.status == 202, answer
        return image_id

    async def read(self, image_id: str, **headers: str) -> Answer:
        return await self.client.get(f"{IMAGES}/{image_id}", headers)

    async def view(self, image_id: str) -> dict[str, Any]:
        answer = await self.read(image_id)
        assert answer.status == 200, answer
        return answer.json()

    async def watch(self, image_id: str, **headers: str) -> Exchange:
        return await self.client.begin("GET", f"{IMAGES}/{image_id}/events", headers).start()

    async def watch_many(self, ids: Iterable[str], **headers: str) -> Exchange:
        target = f"{IMAGES}/events?image_ids={','.join(ids)}"
        return await self.client.begin("GET", target, headers).start()

    # -- a worker's calls ------------------------------------------------------------------

    async def processing(self, image_id: str) -> ProcessingAttempt:
        record = await self.services.reader.record(image_id)
        assert record is not None
        return ProcessingAttempt(image_id, record.upload_id)

    async def advance(self, image_id: str, stage: Stage) -> None:
        outcome = await self.services.store.advance(await self.processing(image_id), stage)
        assert outcome.answer is ImageAnswer.OK

    async def succeed(self, image_id: str, data: bytes = STORED) -> None:
        key = storage_key(image_id)
        stored = await self.services.storage.put(key, data, "image/webp")
        processed = ProcessedImage(
            storage_key=key,
            sha256=hashlib.sha256(data).hexdigest(),
            etag=stored.etag,
            file_size=stored.size_bytes,
            content_type="image/webp",
            original_width=4032,
            original_height=3024,
            processed_width=1920,
            processed_height=1440,
            details=json.dumps(DETAILS).encode(),
        )
        processing = await self.processing(image_id)
        outcome = await self.services.store.succeed(processing, processed)
        assert outcome.answer is ImageAnswer.OK

    async def fail(self, image_id: str) -> None:
        failed = ProcessingFailure(
            ErrorCode.VALIDATION_FAILED, "file too large", b'{"reason":"file_too_large"}'
        )
        outcome = await self.services.store.fail(await self.processing(image_id), failed)
        assert outcome.answer is ImageAnswer.OK

    # -- stored state ----------------------------------------------------------------------

    def spooled(self) -> list[Path]:
        """Every file in the spool, whole or not."""
        directory = self.services.spool.directory
        return sorted(directory.iterdir()) if directory.is_dir() else []

    async def status(self, image_id: str) -> dict[str, str]:
        found: Any = await self.redis.hgetall(KEYS.status(image_id))
        return {name.decode(): value.decode() for name, value in found.items()}

    async def jobs(self) -> int:
        """Number of core jobs in the queue."""
        return int(await self.redis.xlen(self.gateway.keys.queue))

    async def check_untouched(self, image_id: str) -> None:
        """The state is the same as before any upload."""
        assert not await self.redis.exists(KEYS.upload(image_id))
        assert (await self.status(image_id))["stage"] == "queued"
        assert self.spooled() == []
        assert await self.jobs() == 0
        record = await self.services.reader.record(image_id)
        assert record is not None
        assert (record.status.value, record.upload_id, record.job_id) == ("queued", "", "")

    async def check_free(self, image_id: str) -> None:
        """Like `check_untouched`, and another upload is accepted."""
        await self.check_untouched(image_id)
        answer = await self.upload(image_id)
        assert answer.status == 202, answer
