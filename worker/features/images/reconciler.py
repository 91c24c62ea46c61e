"""Repairs what nobody else will: images whose core job ended without them, or is gone."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.jobs import TERMINAL, JobField, JobKeys, Status
from common.errors import CorruptKey
from common.features.images.reader import ImageReader
from common.features.images.storage.spool import Spool
from common.features.images.store import ImageStore, InflightImage
from common.features.images.types import ImageAnswer, ProcessingAttempt, ProcessingFailure
from common.jobs.store import read_reply
from worker.features.images import errors
from worker.features.images.cleanup import remove_upload
from worker.features.images.job_failure import ImageFailureReporter
from worker.features.images.results import parse_result_entry

log = logging.getLogger(__name__)

#: Of all workers one does it, so often. Whoever comes a little early next time must not be refused.
LOCK_TTL_SHARE: Final = 0.9
#: Images looked at in one go.
BATCH_SIZE: Final = 500
#: How long one repair may take: whoever hangs must not hold up the others.
REPAIR_TIMEOUT_S: Final = 10.0


class _Repair(NamedTuple):
    """What is to become of an image: its job's own result, or why there is none."""

    entry: dict[str, str] | None
    failed: ProcessingFailure


class ImageReconciler:
    """Looks for stranded images; every worker has one, one of them at a time does it."""

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
        """Whether nobody else looks just now. It is not given back: once is enough."""
        key = self._store.keys.reconciler
        return bool(await read_reply(self._client.set(key, self._token, nx=True, px=self._lock_ms)))

    async def run_once(self) -> int:
        """Repair what needs it; how many that were."""
        verdicts = await self._find_stranded(await self._store.inflight(BATCH_SIZE))
        if not verdicts:
            return 0
        # Whoever ended the core job has told the image before, or is about to: look again.
        records = await self._reader.records([each.image_id for each in verdicts])
        repaired = 0
        for (image, verdict), record in zip(verdicts.items(), records):
            if record is not None and not record.ended and record.job_id == image.job_id:
                repaired += await self._repair_safely(image, verdict)
        return repaired

    async def _find_stranded(self, images: Sequence[InflightImage]) -> dict[InflightImage, _Repair]:
        """Those whose core job will do nothing more for them."""
        if not images:
            return {}
        pipe = self._client.pipeline(transaction=False)
        fields = [JobField.STATUS, JobField.ERROR, JobField.RESULT]
        for image in images:
            pipe.hmget(self._jobs.job(image.job_id), fields)
        replies = await read_reply(pipe.execute(raise_on_error=False))
        verdicts = ((image, _plan_repair(reply)) for image, reply in zip(images, replies))
        return {image: verdict for image, verdict in verdicts if verdict is not None}

    async def _repair_safely(self, image: InflightImage, verdict: _Repair) -> int:
        """1 where it was repaired; what is wrong with one is no reason to leave the others."""
        try:
            return int(await asyncio.wait_for(self._repair(image, verdict), REPAIR_TIMEOUT_S))
        except CorruptKey as error:
            fault = str(error)
        except asyncio.TimeoutError:
            fault = f"it took longer than {REPAIR_TIMEOUT_S:.0f} s; the next round tries again"
        log.warning("image %s cannot be repaired: %s", image.image_id, fault)
        return 0

    async def _repair(self, image: InflightImage, verdict: _Repair) -> bool:
        if verdict.entry is not None:
            try:
                found = await self._store.repair(image.image_id, image.upload_id, verdict.entry)
            except ValueError:  # the result of something else
                pass
            else:
                if found.answer is ImageAnswer.OK:
                    log.warning("image %s was ended as its job says", image.image_id)
                await remove_upload(self._spool, image.image_id, image.upload_id)
                return found.answer is ImageAnswer.OK
        return await self._failure_reporter.fail(
            ProcessingAttempt(image.image_id, image.upload_id), verdict.failed
        )


def _plan_repair(reply: Any) -> _Repair | None:
    """None where the core job has not ended, or nobody can say."""
    if isinstance(reply, Exception):
        # A key that is something else now is no job; a Redis that refuses has said nothing.
        is_no_job = str(reply).startswith("WRONGTYPE")
        return _Repair(None, errors.JOB_LOST) if is_no_job else None
    status, error, result = (raw or b"" for raw in reply)
    said = codec.decode_text(status)
    if said and said not in TERMINAL:
        return None
    if said == Status.CANCELED.value:
        return _Repair(None, errors.CANCELED)
    if said == Status.ERROR.value:
        return _Repair(None, errors.core_job_failure(error))
    try:
        entry = parse_result_entry(codec.loads(result)) if result else None
    except ValueError:
        entry = None
    return _Repair(entry, errors.JOB_LOST)
