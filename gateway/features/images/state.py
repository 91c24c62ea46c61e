"""What the routes of images need beyond the gateway's core state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from sluice.common.contracts.images import ImageKeys
from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.storage.base import Storage
from sluice.common.features.images.storage.factory import create_spool, create_storage
from sluice.common.features.images.storage.spool import Spool
from sluice.common.features.images.store import ImageStore
from sluice.common.redis.batching import ScriptBatcher
from sluice.gateway.features.images.hub import ImageHub
from sluice.gateway.features.images.metrics import ImageMetrics
from sluice.gateway.features.images.upload.tokens import UploadTokens
from sluice.gateway.state import GatewayState

#: Threads that write uploads; they mostly wait for the disk.
SPOOL_THREADS: Final = 4


@dataclass(frozen=True)
class ImageServices:
    """Built when the app starts, closed when it stops."""

    store: ImageStore
    reader: ImageReader
    #: Uploads before they are processed.
    spool: Spool
    #: Processed images.
    storage: Storage
    hub: ImageHub
    #: None if upload tokens are disabled.
    upload_tokens: UploadTokens | None
    metrics: ImageMetrics
    spool_threads: ThreadPoolExecutor

    @classmethod
    def build(cls, state: GatewayState, batcher: ScriptBatcher) -> ImageServices:
        """`batcher` runs the image script on the home partition."""
        settings, client, keys = state.settings, state.client, state.store.keys
        image_keys = ImageKeys(keys.tag)
        reader = ImageReader(client, image_keys)
        return cls(
            store=ImageStore(client, keys, batcher, image_keys),
            reader=reader,
            spool=create_spool(settings),
            storage=create_storage(settings),
            hub=ImageHub(reader, settings.sse_heartbeat_s, settings.sse_max_life_s),
            upload_tokens=UploadTokens.of(settings.image_upload_secret),
            metrics=ImageMetrics(),
            spool_threads=ThreadPoolExecutor(SPOOL_THREADS, "spool"),
        )

    async def close(self) -> None:
        """Release threads and connections; the hub is stopped with all others."""
        self.spool_threads.shutdown(wait=False)
        await self.storage.close()


def images_of(request: Request) -> ImageServices:
    """The image services behind a request."""
    services: ImageServices = request.app.state.images
    return services
