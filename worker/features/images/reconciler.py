"""Ends images whose core job has ended without ending them, or is gone."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.jobs import TERMINAL, JobField, JobKeys, Status
from sluice.common.errors import CorruptKey
from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.storage.spool import Spool
from sluice.common.features.images.store import ImageStore, InflightImage
from sluice.common.features.images.types import ImageAnswer, ProcessingAttempt, ProcessingFailure
from sluice.common.jobs.store import read_reply
from sluice.worker.features.images import errors
from sluice.worker.features.images.cleanup import remove_upload
from sluice.worker.features.images.job_failure import ImageFailureReporter
from sluice.worker.features.images.results import parse_result_entry

log = logging.getLogger(__name__)

#: Validity of the lock, as a fraction of the interval, so that the next round is not refused if it
#: comes slightly early.
LOCK_TTL_SHARE: Final = 0.9
#: Images checked per round.
BATCH_SIZE: Final = 500
#: Time limit of one repair, so that one that hangs does not delay the others.
REPAIR_TIMEOUT_S: Final = 10.0


class _Repair(NamedTuple):
    """The result entry of the core job, or the failure to record if there is none."""

    entry: dict[str, str] | None
    failed: ProcessingFailure


class ImageReconciler:
    """Repairs stranded images. Every worker has one; a lock lets one of them run at a time."""

    def __init__(
        self,
        client: Redis,
        jobs: JobKeys,
        store: ImageStore,
        reader: ImageReader,
        spool: Spool,
        ending: ImageFailureReporter,
        every_s: float,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._store = store
        self._reader = reader
        self._spool = spool
        self._failure_reporter = ending
        self._lock_ms = max(1, round(every_s * LOCK_TTL_SHARE * 1000))
        self._token = uuid.uuid4().hex

    async def acquire_lock(self) -> bool:
        """True if no other worker holds the lock. It is not released but expires."""
        key = self._store.keys.reconciler
        return bool(await read_reply(self._client.set(key, self._token, nx=True, px=self._lock_ms)))

    async def run_once(self) -> int:
        """Repair stranded images; returns how many."""
        repairs = await self._find_stranded(await self._store.inflight(BATCH_SIZE))
        if not repairs:
            return 0
        # The worker that ended the core job may just have ended the image, too: read the records
        # again.
        records = await self._reader.records([each.image_id for each in repairs])
        repaired = 0
        for (image, repair), record in zip(repairs.items(), records):
            if record is not None and not record.ended and record.job_id == image.job_id:
                repaired += await self._repair_safely(image, repair)
        return repaired

    async def _find_stranded(self, images: Sequence[InflightImage]) -> dict[InflightImage, _Repair]:
        """Images whose core job has ended or is gone."""
        if not images:
            return {}
        pipe = self._client.pipeline(transaction=False)
        fields = [JobField.STATUS, JobField.ERROR, JobField.RESULT]
        for image in images:
            pipe.hmget(self._jobs.job(image.job_id), fields)
        replies = await read_reply(pipe.execute(raise_on_error=False))
        repairs = ((image, _plan_repair(reply)) for image, reply in zip(images, replies))
        return {image: repair for image, repair in repairs if repair is not None}

    async def _repair_safely(self, image: InflightImage, repair: _Repair) -> int:
        """Repair one image; returns 1 on success.

        A failure is logged and does not affect the others.
        """
        try:
            return int(await asyncio.wait_for(self._repair(image, repair), REPAIR_TIMEOUT_S))
        except CorruptKey as error:
            problem = str(error)
        except asyncio.TimeoutError:
            problem = f"it took longer than {REPAIR_TIMEOUT_S:.0f} s; the next round tries again"
        log.warning("image %s: repair failed: %s", image.image_id, problem)
        return 0

    async def _repair(self, image: InflightImage, repair: _Repair) -> bool:
        if repair.entry is not None:
            try:
                found = await self._store.repair(image.image_id, image.upload_id, repair.entry)
            except ValueError:  # not the result of an image
                pass
            else:
                if found.answer is ImageAnswer.OK:
                    log.warning("image %s: ended with the result of its core job", image.image_id)
                await remove_upload(self._spool, image.image_id, image.upload_id)
                return found.answer is ImageAnswer.OK
        return await self._failure_reporter.fail(
            ProcessingAttempt(image.image_id, image.upload_id), repair.failed
        )


def _plan_repair(reply: Any) -> _Repair | None:
    """None if the core job has not ended, or its state is unknown."""
    if isinstance(reply, Exception):
        # A key of another type is not a job; any other error leaves the state unknown.
        wrong_type = str(reply).startswith("WRONGTYPE")
        return _Repair(None, errors.JOB_LOST) if wrong_type else None
    status, error, result = (raw or b"" for raw in reply)
    current = codec.decode_text(status)
    if current and current not in TERMINAL:
        return None
    if current == Status.CANCELED.value:
        return _Repair(None, errors.CANCELED)
    if current == Status.ERROR.value:
        return _Repair(None, errors.core_job_failure(error))
    try:
        entry = parse_result_entry(codec.loads(result)) if result else None
    except ValueError:
        entry = None
    return _Repair(entry, errors.JOB_LOST)
