"""The end of an image: its keys, its job, what lies in spool and store."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import Request

from common.contracts.images import ImageFact, ImageStatus, storage_key
from common.features.images.records import ImageRecord
from common.features.images.storage.base import Storage, StorageError
from common.features.images.types import ImageAnswer
from gateway.features.images.state import images_of
from gateway.http.problems import Problem, retry_headers
from gateway.state import state_of

log = logging.getLogger(__name__)


async def delete(request: Request, image_id: str) -> None:
    """Forget an image. Where something fails, the same request does the rest of it.

    A stored object goes first: as long as it is there, so is the record that knows of it. An
    attempt that failed later, or of an earlier upload, may have left one, too.
    """
    images = images_of(request)
    record = await images.reader.record(image_id)
    if record is not None:
        await _remove_object(images.storage, _storage_key(record))
    outcome = await images.store.delete(image_id)
    if outcome.answer is not ImageAnswer.OK:
        return
    facts = outcome.facts
    await clear_upload(request, image_id, facts)
    if facts.get(ImageFact.STATUS) != ImageStatus.QUEUED.value:
        # A job may have ended since the first look; one that still runs finds no image, and
        # removes what it has stored.
        await _remove_object(images.storage, str(facts.get(ImageFact.STORAGE_KEY, "")))


async def clear_upload(request: Request, image_id: str, facts: Any) -> None:
    """What was uploaded counts no more: end its job, and remove its file."""
    job_id, upload_id = facts.get(ImageFact.JOB_ID), facts.get(ImageFact.UPLOAD_ID)
    if job_id:
        state = state_of(request)
        settings = state.settings
        await state.store.cancel(str(job_id), settings.worker_group, b"{}", settings.job_ttl_s)
    if upload_id:
        try:
            await asyncio.to_thread(images_of(request).spool.remove, image_id, str(upload_id))
        except (OSError, ValueError) as error:
            log.warning("an upload that nobody needs is left to the sweep: %s", error)


async def _remove_object(storage: Storage, key: str) -> None:
    if not key:
        return
    try:
        await storage.delete(key)
    except StorageError as error:
        raise storage_unavailable(error) from None


def storage_unavailable(error: StorageError) -> Problem:
    """The store does not do it just now."""
    log.warning("the image store: %s", error)
    return Problem(
        503,
        "storage_unavailable",
        "The image store does not answer as it should; the gateway's log says why. Try again "
        "later.",
        headers=retry_headers(5.0),
    )


def _storage_key(record: ImageRecord) -> str:
    return storage_key(record.image_id) if record.result is None else record.result.storage_key
