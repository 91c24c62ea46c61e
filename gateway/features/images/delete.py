"""Deletes an image: its keys, its job, its upload and its stored object."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import Request

from sluice.common.contracts.images import ImageFact, ImageStatus, storage_key
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.storage.base import Storage, StorageError
from sluice.common.features.images.types import ImageAnswer
from sluice.gateway.features.images.state import images_of
from sluice.gateway.http.problems import Problem, retry_headers
from sluice.gateway.state import state_of

log = logging.getLogger(__name__)


async def delete(request: Request, image_id: str) -> None:
    """Delete an image. After an error, the same request completes the deletion.

    The stored object is deleted first: as long as it exists, the record that names it does too.
    A failed attempt, or an earlier upload, may have left an object as well.
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
        # The job may have ended meanwhile. One that still runs finds no image and removes the
        # object that it has stored.
        await _remove_object(images.storage, str(facts.get(ImageFact.STORAGE_KEY, "")))


async def clear_upload(request: Request, image_id: str, facts: Any) -> None:
    """Cancel the job of an upload, and remove its file."""
    job_id, upload_id = facts.get(ImageFact.JOB_ID), facts.get(ImageFact.UPLOAD_ID)
    if job_id:
        state = state_of(request)
        settings = state.settings
        await state.store.cancel(str(job_id), settings.worker_group, b"{}", settings.job_ttl_s)
    if upload_id:
        try:
            await asyncio.to_thread(images_of(request).spool.remove, image_id, str(upload_id))
        except (OSError, ValueError) as error:
            log.warning("upload of a deleted image not removed, the worker's sweep will: %s", error)


async def _remove_object(storage: Storage, key: str) -> None:
    if not key:
        return
    try:
        await storage.delete(key)
    except StorageError as error:
        raise storage_unavailable(error) from None


def storage_unavailable(error: StorageError) -> Problem:
    """The object store failed."""
    log.warning("image store: %s", error)
    return Problem(
        503,
        "storage_unavailable",
        "The image store failed; the gateway's log has the reason. Try again later.",
        headers=retry_headers(5.0),
    )


def _storage_key(record: ImageRecord) -> str:
    return storage_key(record.image_id) if record.result is None else record.result.storage_key
