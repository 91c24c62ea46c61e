"""ImageStore: one method per state change of an image; the only code that writes one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.admission import Admission, admission_arguments, limit_keys
from common.coalescer import Coalescer
from common.contracts.images import (
    PROGRESS,
    ImageKeys,
    ImageOperation,
    RecordField,
    ResultField,
    Stage,
)
from common.contracts.jobs import JobKeys
from common.images.results import flaw_of
from common.images.types import (
    Failed,
    ImageAnswer,
    ImageOutcome,
    NewImage,
    Processed,
    Processing,
    Uploaded,
)
from common.scripts import Argument, Record, Reply
from common.store import Fence, read

_ANSWERS: Final = {answer.value.encode(): answer for answer in ImageAnswer}
_NO_FENCE: Final = Fence("", 0, "")
_ENDS: Final = (Stage.QUEUED, Stage.DONE, Stage.FAILED)
#: A longer error message is cut.
MOST_MESSAGE_CHARS: Final = 1000
#: Fields of an entry that are kept where it is put aside.
MOST_DEAD_FIELDS: Final = 100


class Inflight(NamedTuple):
    """An image that was uploaded and has not ended, and the core job that is to end it."""

    image_id: str
    upload_id: str
    job_id: str


class ImageStore:
    """Writes travel through a coalescer of the images' script, one call for many."""

    def __init__(
        self, client: Redis, jobs: JobKeys, coalescer: Coalescer, keys: ImageKeys | None = None
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._coalescer = coalescer
        self.keys = keys or ImageKeys(jobs.tag)
        #: Where the next look at images under way begins.
        self._look_from = 0

    # -- gateway ---------------------------------------------------------------------------

    async def create(self, new: NewImage) -> ImageOutcome:
        """Make an image.

        OK{image_id}, ALREADY{image_id} (the Idempotency-Key's earlier image) or REUSED.
        """
        keys = [*self._keys_of(new.image_id), self.keys.index()]
        if new.tenant:
            keys.append(self.keys.index(new.tenant))
        if new.once_key:
            keys.append(new.once_key)
        fingerprint = new.fingerprint if new.once_key else ""
        args: list[Argument] = [new.image_id, new.tenant, fingerprint, new.once_ttl_s]
        for field, value in _record_of(new).items():
            args += (field.value, value)
        return await self._call(ImageOperation.CREATE, keys, args, len(new.metadata))

    async def claim(self, image_id: str, upload_id: str, hold_ms: int) -> ImageOutcome:
        """Take the guard. OK, MISSING or CONFLICT{status}."""
        return await self._on(image_id, ImageOperation.CLAIM, upload_id, hold_ms)

    async def hold(self, image_id: str, upload_id: str, hold_ms: int) -> ImageOutcome:
        """The upload goes on. OK or LOST."""
        return await self._on(image_id, ImageOperation.HOLD, upload_id, hold_ms)

    async def release(self, image_id: str, upload_id: str) -> ImageOutcome:
        """The upload came to nothing. OK (nobody has the guard) or LOST."""
        return await self._on(image_id, ImageOperation.RELEASE, upload_id)

    async def submit(self, uploaded: Uploaded, admission: Admission) -> ImageOutcome:
        """Make the core job. OK{job_id}, LOST, MISSING, FULL{backlog}, RATE{wait_ms} or
        QUOTA{active}; after these three the upload still has the guard."""
        keys = (*self._keys_of(uploaded.image_id), *limit_keys(admission))
        args: list[Argument] = [uploaded.upload_id, uploaded.job_id, uploaded.content_type]
        args += (uploaded.size_bytes, uploaded.sha256, admission.core_ttl_s)
        args += admission_arguments(admission)
        return await self._call(ImageOperation.SUBMIT, keys, args)

    async def reopen(self, image_id: str) -> ImageOutcome:
        """Let a failed or stale image be uploaded again.

        OK{upload_id?, job_id?} of what counts no more, CONFLICT{status} or MISSING.
        """
        return await self._on(image_id, ImageOperation.REOPEN)

    async def delete(self, image_id: str) -> ImageOutcome:
        """Forget an image. OK{status, storage_key, job_id?, upload_id?} or MISSING."""
        keys = (*self._keys_of(image_id), self.keys.index(), self.keys.deleted(image_id))
        return await self._call(ImageOperation.DELETE, keys, (image_id, os.urandom(8).hex()))

    # -- worker ----------------------------------------------------------------------------

    async def advance(self, processing: Processing, stage: Stage) -> ImageOutcome:
        """Say how far it has got. OK, ALREADY, LOST or MISSING."""
        if stage in _ENDS:  # nobody may say so without a result
            raise ValueError(f"{stage.value} is no stage on the way")
        return await self._work(processing, ImageOperation.ADVANCE, stage.value, PROGRESS[stage])

    async def succeed(self, processing: Processing, processed: Processed) -> ImageOutcome:
        """OK{outcome}, ALREADY{outcome}, LOST or MISSING."""
        args: list[Argument] = [processed.details]
        for field, value in _result_of(processed).items():
            args += (field.value, value)
        size = len(processed.details)
        return await self._work(processing, ImageOperation.SUCCEED, *args, size=size)

    async def fail(self, processing: Processing, failed: Failed) -> ImageOutcome:
        """OK{outcome}, ALREADY{outcome}, LOST or MISSING."""
        message = failed.message[:MOST_MESSAGE_CHARS].encode(errors="replace")
        args = (failed.details, failed.code.value, message)
        return await self._work(processing, ImageOperation.FAIL, *args, size=len(failed.details))

    # -- reconciler ------------------------------------------------------------------------

    async def inflight(self, limit: int) -> list[Inflight]:
        """Some images that have not ended. Each look begins where the last one stopped, and over
        again at the end, so that none waits for others to end first."""
        command: Any = self._client.zrange(
            self.keys.inflight, self._look_from, self._look_from + limit - 1
        )
        ids = [codec.text(raw) for raw in await read(command) or ()]
        self._look_from = self._look_from + limit if len(ids) == limit else 0
        if not ids:
            return []
        fields = (RecordField.UPLOAD_ID, RecordField.JOB_ID)
        pipe = self._client.pipeline(transaction=False)
        for image_id in ids:
            pipe.hmget(self.keys.record(image_id), [field.value for field in fields])
        found, gone = [], []
        for image_id, values in zip(ids, await read(pipe.execute(raise_on_error=False))):
            if isinstance(values, Exception):
                continue
            upload_id, job_id = (codec.text(value or b"") for value in values)
            if upload_id and job_id:
                found.append(Inflight(image_id, upload_id, job_id))
            else:
                gone.append(image_id)
        if gone:
            await self._forget(gone)
        return found

    async def _forget(self, image_ids: Sequence[str]) -> None:
        """Their records have run out: ids do not come back."""
        pipe = self._client.pipeline(transaction=False)
        for image_id in image_ids:
            pipe.exists(self.keys.record(image_id))
        replies = await read(pipe.execute(raise_on_error=False))
        gone = [image_id for image_id, there in zip(image_ids, replies) if there == 0]
        if gone:
            await read(self._client.zrem(self.keys.inflight, *gone))

    async def repair(
        self, image_id: str, upload_id: str, fields: Mapping[str, str]
    ) -> ImageOutcome:
        """End an image as its job's own result says. OK{outcome}, ALREADY{outcome}, LOST or
        MISSING. Raises ValueError for what is no result of this image."""
        _refuse_flaw(fields, image_id)
        return await self._on(image_id, ImageOperation.REPAIR, upload_id, *_flat(fields))

    # -- consumer of results ---------------------------------------------------------------

    async def persist(self, entry_id: str, fields: Mapping[str, str], group: str) -> ImageOutcome:
        """Write an entry into the record and acknowledge it. OK, ALREADY or MISSING.

        Raises ValueError for what is no result (`flaw_of`).
        """
        _refuse_flaw(fields)
        image_id = fields[ResultField.IMAGE_ID.value]
        return await self._on(image_id, ImageOperation.PERSIST, entry_id, group, *_flat(fields))

    async def dead(
        self, entry_id: str, fields: Mapping[str, str], reason: str, deliveries: int, group: str
    ) -> None:
        """Put an entry aside and acknowledge it; nothing where it is not pending any more.

        Of one with more fields than a script takes the first ones are kept.
        """
        fields = dict(islice(fields.items(), MOST_DEAD_FIELDS))
        keys = (self.keys.results, self.keys.dead_results)
        args = (entry_id, group, reason, deliveries, *_flat(fields))
        size = sum(map(len, fields.values()))
        await self._call(ImageOperation.DEAD, keys, args, size)

    # -- calls -----------------------------------------------------------------------------

    def _keys_of(self, image_id: str) -> tuple[str, ...]:
        """What every operation on an image has first."""
        keys = self.keys
        own = (keys.record(image_id), keys.status(image_id), keys.upload(image_id))
        return (*own, keys.inflight, keys.results)

    async def _on(
        self, image_id: str, operation: ImageOperation, *args: Argument, size: int = 0
    ) -> ImageOutcome:
        return await self._call(operation, self._keys_of(image_id), args, size)

    async def _work(
        self, processing: Processing, operation: ImageOperation, *args: Argument, size: int = 0
    ) -> ImageOutcome:
        image_id, upload_id, fence = processing
        proof = (upload_id, *(fence or _NO_FENCE))
        return await self._on(image_id, operation, *proof, *args, size=size)

    async def _call(
        self,
        operation: ImageOperation,
        keys: Sequence[str],
        args: Sequence[Argument],
        size: int = 0,
    ) -> ImageOutcome:
        record = Record(operation.value, keys, args, size=size)
        return _outcome(await self._coalescer.call(record))


def _outcome(reply: Reply) -> ImageOutcome:
    """What the script said: `value` is its answer, then come the facts."""
    answer = _ANSWERS[reply.value]  # type: ignore[index]
    return ImageOutcome(answer, codec.loads(reply.more[0]) or {})


def _flat(fields: Mapping[str, str]) -> list[Argument]:
    return [part for field in fields.items() for part in field]


def _refuse_flaw(fields: Mapping[str, str], image_id: str | None = None) -> None:
    flaw = flaw_of(fields)
    if flaw:
        raise ValueError(flaw)
    if image_id is not None and fields[ResultField.IMAGE_ID.value] != image_id:
        raise ValueError("it is about another image")


def _record_of(new: NewImage) -> dict[RecordField, Argument]:
    """Fields of the record that do not come of the script itself."""
    return {
        RecordField.FILENAME: new.filename,
        RecordField.DECLARED_TYPE: new.declared_type,
        RecordField.MAX_BYTES: new.max_bytes,
        RecordField.METADATA: new.metadata,
        RecordField.DETECT: new.detect.value,
        RecordField.TAIL: new.tail,
        RecordField.TTL_S: new.ttl_s,
    }


def _result_of(processed: Processed) -> dict[ResultField, Argument]:
    """Fields of the entry between those that the script adds, in the contract's order."""
    return {
        ResultField.STORAGE_KEY: processed.storage_key,
        ResultField.SHA256: processed.sha256,
        ResultField.ETAG: processed.etag,
        ResultField.FILE_SIZE: processed.file_size,
        ResultField.CONTENT_TYPE: processed.content_type,
        ResultField.ORIGINAL_WIDTH: processed.original_width,
        ResultField.ORIGINAL_HEIGHT: processed.original_height,
        ResultField.PROCESSED_WIDTH: processed.processed_width,
        ResultField.PROCESSED_HEIGHT: processed.processed_height,
    }
