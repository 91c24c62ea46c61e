"""Removes what an upload has left in the spool; whatever cannot be removed is swept later."""

from __future__ import annotations

import asyncio
import logging

from common.images.spool import Spool

log = logging.getLogger(__name__)


async def forget(spool: Spool, image_id: str, upload_id: str, attempts: int = 0) -> None:
    """Its file is needed no more. Never raises: what came of the image is more important."""
    try:
        await asyncio.to_thread(spool.remove, image_id, upload_id, attempts)
    except OSError as error:
        log.warning("the upload of image %s stays in the spool: %s", image_id, error)
