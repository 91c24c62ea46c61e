"""The image API: upload, follow and download images."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from sluice.aio.base import AsyncBaseClient
from sluice.api import images as api
from sluice.api.images import Image, ImageUpload
from sluice.api.jobs import Event
from sluice.errors import Conflict
from sluice.transport.aio import read_file
from sluice.transport.event_stream import EventStream, Notify


class Images:
    """The image API, available as `AsyncSluice.images`."""

    def __init__(self, sluice: AsyncBaseClient) -> None:
        self._sluice = sluice

    async def upload(
        self,
        data: bytes | PathLike[str],
        *,
        content_type: str | None = None,
        filename: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        detect: str | None = None,
        idempotency_key: str | None = None,
    ) -> Image:
        """Upload bytes or a file. Does not wait for processing; use `stream` or `wait` for that."""
        if isinstance(data, PathLike):
            filename = filename or Path(data).name
            data = await read_file(Path(data))
        request = api.create(
            content_type=content_type,
            filename=filename,
            metadata=metadata,
            detect=detect,
            idempotency_key=idempotency_key,
        )
        upload = await self._sluice.send(request)
        return await self.send(upload, data, content_type=content_type)

    async def send(
        self, upload: ImageUpload, data: bytes, *, content_type: str | None = None
    ) -> Image:
        """Upload the bytes of an image that was created, or reopened with `retry`."""
        request = api.upload(
            upload.image_id, data, content_type or api.OCTET_STREAM, upload.upload_token
        )
        try:
            await self._sluice.send(request)
        except Conflict as error:
            # An earlier attempt may have succeeded although its response was lost.
            image = await self.get(upload.image_id)
            if error.code != api.ALREADY_UPLOADED or image.job_id is None:
                raise
            return image
        return await self.get(upload.image_id)

    async def get(self, image_id: str) -> Image:
        """Read an image."""
        return await self._sluice.send(api.get(image_id))

    def list(self) -> AsyncIterator[Image]:
        """Iterate over all images, newest first."""
        return self._sluice.paginate(lambda before: api.list_images(None, before))

    def stream(self, *image_ids: str, notify: Notify | None = None) -> AsyncGenerator[Event, None]:
        """Iterate over stage changes until all images have ended; `data` holds the stage."""
        path = api.events_path(image_ids)
        return self._sluice.follow(EventStream(path, ordered=False, notify=notify))

    async def wait(self, image_id: str) -> Image:
        """Wait until the image is processed or has failed."""
        async for _ in self.stream(image_id):
            pass
        return await self.get(image_id)

    async def content(self, image_id: str) -> bytes:
        """Download the processed image."""
        return await self._sluice.send(api.content(image_id))

    async def retry(self, image_id: str) -> ImageUpload:
        """Reopen a failed image, so that its bytes can be uploaded again with `send`."""
        return await self._sluice.send(api.retry(image_id))

    async def delete(self, image_id: str) -> None:
        """Delete an image and all data derived from it."""
        await self._sluice.send(api.delete(image_id))
