"""Images: sent, followed, fetched."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from client.core import store_api as api
from client.core.following import Following, Say
from client.core.models import Event
from client.core.store_models import Image, ImagePlace
from client.errors import Conflict
from client.sync.asking import Asking


class Images:
    """Those of one gateway; `Sluice.images`."""

    def __init__(self, sluice: Asking) -> None:
        self._sluice = sluice

    def upload(
        self,
        data: bytes | PathLike[str],
        *,
        content_type: str | None = None,
        filename: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        detect: str | None = None,
        idempotency_key: str | None = None,
    ) -> Image:
        """Send bytes, or a file; returns at once, `stream` or `wait` tells what becomes of it."""
        if isinstance(data, PathLike):
            filename = filename or Path(data).name
            data = Path(data).read_bytes()
        place = self._sluice.run(
            api.create_image(
                content_type=content_type,
                filename=filename,
                metadata=metadata,
                detect=detect,
                idempotency_key=idempotency_key,
            )
        )
        return self.send(place, data, content_type=content_type)

    def send(self, place: ImagePlace, data: bytes, *, content_type: str | None = None) -> Image:
        """The bytes for an image that was created, or is to be tried again."""
        asked = api.send_image(place.image_id, data, content_type or api.OCTETS, place.upload_token)
        try:
            self._sluice.run(asked)
        except Conflict as error:
            # The first try may have arrived although its answer did not.
            image = self.get(place.image_id)
            if error.code != api.ALREADY_UPLOADED or image.job_id is None:
                raise
            return image
        return self.get(place.image_id)

    def get(self, image_id: str) -> Image:
        """It as it stands."""
        return self._sluice.run(api.get_image(image_id))

    def list(self) -> Iterator[Image]:
        """All of them, newest first."""
        return self._sluice.pages(lambda before: api.list_images(None, before))

    def stream(self, *image_ids: str, say: Say | None = None) -> Generator[Event, None, None]:
        """Where they are, whenever that changes, until all have ended; `data` has the stage."""
        following = Following(api.image_events_path(image_ids), ordered=False, say=say)
        return self._sluice.follow(following)

    def wait(self, image_id: str) -> Image:
        """It when it was processed, or has failed."""
        for _ in self.stream(image_id):
            pass
        return self.get(image_id)

    def content(self, image_id: str) -> bytes:
        """The processed image, from wherever it is kept."""
        return self._sluice.run(api.image_content(image_id))

    def retry(self, image_id: str) -> ImagePlace:
        """A place for the bytes of one that failed; `send` them there."""
        return self._sluice.run(api.retry_image(image_id))

    def delete(self, image_id: str) -> None:
        """It is gone, with everything that was made of it."""
        self._sluice.run(api.delete_image(image_id))
