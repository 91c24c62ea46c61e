"""ImageStore: one method per state change of an image; the only code that writes one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.images import (
    STAGE_PROGRESS,
    ImageKeys,
    ImageOperation,
    ImageRecordField,
    ImageResultField,
    Stage,
)
from sluice.common.contracts.jobs import JobKeys
from sluice.common.features.images.records import find_entry_error
from sluice.common.features.images.types import (
    CompletedUpload,
    ImageAnswer,
    ImageOutcome,
    NewImage,
    ProcessedImage,
    ProcessingAttempt,
    ProcessingFailure,
)
from sluice.common.jobs.limits import AdmissionLimits, admission_arguments, limit_keys
from sluice.common.jobs.store import Fence, read_reply
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.scripts import Argument, Record, Reply

_ANSWERS: Final = {answer.value.encode(): answer for answer in ImageAnswer}
_NO_FENCE: Final = Fence("", 0, "")
_ENDS: Final = (Stage.QUEUED, Stage.DONE, Stage.FAILED)
#: Longer error messages are cut.
MOST_MESSAGE_CHARS: Final = 1000
#: Fields of a result entry that are kept in its dead letter.
MOST_DEAD_FIELDS: Final = 100


class InflightImage(NamedTuple):
    """An uploaded image that has not ended, and its core job."""

    image_id: str
    upload_id: str
    job_id: str


class ImageStore:
    """Writes images. The batcher sends many writes in one call of the image script."""

    def __init__(
        self, client: Redis, jobs: JobKeys, batcher: ScriptBatcher, keys: ImageKeys | None = None
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._batcher = batcher
        self.keys = keys or ImageKeys(jobs.tag)
        #: Where the next scan of in-flight images begins.
        self._scan_offset = 0

    # -- gateway ---------------------------------------------------------------------------

    async def create(self, new: NewImage) -> ImageOutcome:
        """Create an image.

        OK{image_id}, ALREADY{image_id} (the earlier image of the Idempotency-Key) or REUSED.
        """
        keys = [*self._keys_of(new.image_id), self.keys.index()]
        if new.tenant:
            keys.append(self.keys.index(new.tenant))
        if new.idempotency_key:
            keys.append(new.idempotency_key)
        fingerprint = new.fingerprint if new.idempotency_key else ""
        args: list[Argument] = [new.image_id, new.tenant, fingerprint, new.idempotency_ttl_s]
        for field, value in _record_fields(new).items():
            args += (field, value)
        return await self._call(ImageOperation.CREATE, keys, args, len(new.metadata))

    async def claim(self, image_id: str, upload_id: str, hold_ms: int) -> ImageOutcome:
        """Take the upload guard. OK, MISSING or CONFLICT{status}."""
        return await self._on(image_id, ImageOperation.CLAIM, upload_id, hold_ms)

    async def extend_claim(self, image_id: str, upload_id: str, hold_ms: int) -> ImageOutcome:
        """Extend the upload guard. OK or LOST."""
        return await self._on(image_id, ImageOperation.HOLD, upload_id, hold_ms)

    async def release(self, image_id: str, upload_id: str) -> ImageOutcome:
        """Release the guard of a failed upload. OK (the guard is free) or LOST."""
        return await self._on(image_id, ImageOperation.RELEASE, upload_id)

    async def submit(self, uploaded: CompletedUpload, admission: AdmissionLimits) -> ImageOutcome:
        """Create the core job. OK{job_id}, LOST, MISSING, FULL{backlog}, RATE{wait_ms} or
        QUOTA{active}; after the last three the upload still has the guard."""
        keys = (*self._keys_of(uploaded.image_id), *limit_keys(admission))
        args: list[Argument] = [uploaded.upload_id, uploaded.job_id, uploaded.content_type]
        args += (uploaded.size_bytes, uploaded.sha256, admission.core_ttl_s)
        args += admission_arguments(admission)
        return await self._call(ImageOperation.SUBMIT, keys, args)

    async def reopen(self, image_id: str) -> ImageOutcome:
        """Allow a failed or stale image to be uploaded again.

        OK{upload_id?, job_id?} of the replaced upload, CONFLICT{status} or MISSING.
        """
        return await self._on(image_id, ImageOperation.REOPEN)

    async def delete(self, image_id: str) -> ImageOutcome:
        """Delete an image. OK{status, storage_key, job_id?, upload_id?} or MISSING."""
        keys = (*self._keys_of(image_id), self.keys.index(), self.keys.deleted(image_id))
        return await self._call(ImageOperation.DELETE, keys, (image_id, os.urandom(8).hex()))

    # -- worker ----------------------------------------------------------------------------

    async def advance(self, processing: ProcessingAttempt, stage: Stage) -> ImageOutcome:
        """Report the stage. OK, ALREADY, LOST or MISSING."""
        if stage in _ENDS:  # these need a result
            raise ValueError(f"{stage.value} is not an intermediate stage")
        return await self._work(
            processing, ImageOperation.ADVANCE, stage.value, STAGE_PROGRESS[stage]
        )

    async def succeed(
        self, processing: ProcessingAttempt, processed: ProcessedImage
    ) -> ImageOutcome:
        args: list[Argument] = [processed.details]
        for field, value in _result_fields(processed).items():
            args += (field, value)
        size = len(processed.details)
        return await self._work(processing, ImageOperation.SUCCEED, *args, size=size)

    async def fail(self, processing: ProcessingAttempt, failed: ProcessingFailure) -> ImageOutcome:
        message = failed.message[:MOST_MESSAGE_CHARS].encode(errors="replace")
        args = (failed.details, failed.code.value, message)
        return await self._work(processing, ImageOperation.FAIL, *args, size=len(failed.details))

    # -- reconciler ------------------------------------------------------------------------

    async def inflight(self, limit: int) -> list[InflightImage]:
        """Some images that have not ended. Each scan continues where the last one stopped, and
        starts over at the end, so that every image is reached."""
        command: Any = self._client.zrange(
            self.keys.inflight, self._scan_offset, self._scan_offset + limit - 1
        )
        ids = [codec.decode_text(raw) for raw in await read_reply(command) or ()]
        self._scan_offset = self._scan_offset + limit if len(ids) == limit else 0
        if not ids:
            return []
        fields = (ImageRecordField.UPLOAD_ID, ImageRecordField.JOB_ID)
        pipe = self._client.pipeline(transaction=False)
        for image_id in ids:
            pipe.hmget(self.keys.record(image_id), list(fields))
        found, gone = [], []
        for image_id, values in zip(ids, await read_reply(pipe.execute(raise_on_error=False))):
            if isinstance(values, Exception):
                continue
            upload_id, job_id = (codec.decode_text(value or b"") for value in values)
            if upload_id and job_id:
                found.append(InflightImage(image_id, upload_id, job_id))
            else:
                gone.append(image_id)
        if gone:
            await self._forget(gone)
        return found

    async def _forget(self, image_ids: Sequence[str]) -> None:
        """Remove images whose records have expired; ids are not reused."""
        pipe = self._client.pipeline(transaction=False)
        for image_id in image_ids:
            pipe.exists(self.keys.record(image_id))
        replies = await read_reply(pipe.execute(raise_on_error=False))
        gone = [image_id for image_id, there in zip(image_ids, replies) if there == 0]
        if gone:
            await read_reply(self._client.zrem(self.keys.inflight, *gone))

    async def repair(
        self, image_id: str, upload_id: str, fields: Mapping[str, str]
    ) -> ImageOutcome:
        """End an image with the result of its job. OK{outcome}, ALREADY{outcome}, LOST or MISSING.
        Raises ValueError if `fields` are not a result of this image."""
        _check_entry(fields, image_id)
        return await self._on(image_id, ImageOperation.REPAIR, upload_id, *_flat(fields))

    # -- consumer of results ---------------------------------------------------------------

    async def persist(self, entry_id: str, fields: Mapping[str, str], group: str) -> ImageOutcome:
        """Write a result entry into the record and acknowledge it. OK, ALREADY or MISSING.

        Raises ValueError if it is not a valid result (`find_entry_error`).
        """
        _check_entry(fields)
        image_id = fields[ImageResultField.IMAGE_ID]
        return await self._on(image_id, ImageOperation.PERSIST, entry_id, group, *_flat(fields))

    async def dead_letter_result(
        self, entry_id: str, fields: Mapping[str, str], reason: str, deliveries: int, group: str
    ) -> None:
        """Dead-letter an entry and acknowledge it, if it is still pending.

        If it has more fields than a script can take, only the first ones are kept.
        """
        fields = dict(islice(fields.items(), MOST_DEAD_FIELDS))
        keys = (self.keys.results, self.keys.dead_results)
        args = (entry_id, group, reason, deliveries, *_flat(fields))
        size = sum(map(len, fields.values()))
        await self._call(ImageOperation.DEAD, keys, args, size)

    # -- calls -----------------------------------------------------------------------------

    def _keys_of(self, image_id: str) -> tuple[str, ...]:
        """The first keys of every operation on an image."""
        keys = self.keys
        own = (keys.record(image_id), keys.status(image_id), keys.upload(image_id))
        return (*own, keys.inflight, keys.results)

    async def _on(
        self, image_id: str, operation: ImageOperation, *args: Argument, size: int = 0
    ) -> ImageOutcome:
        return await self._call(operation, self._keys_of(image_id), args, size)

    async def _work(
        self,
        processing: ProcessingAttempt,
        operation: ImageOperation,
        *args: Argument,
        size: int = 0,
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
        return _outcome(await self._batcher.call(record))


def _outcome(reply: Reply) -> ImageOutcome:
    """Parse a script's reply: `value` is its answer, followed by the facts."""
    answer = _ANSWERS[reply.value]  # type: ignore[index]
    return ImageOutcome(answer, codec.loads(reply.more[0]) or {})


def _flat(fields: Mapping[str, str]) -> list[Argument]:
    return [part for field in fields.items() for part in field]


def _check_entry(fields: Mapping[str, str], image_id: str | None = None) -> None:
    problem = find_entry_error(fields)
    if problem:
        raise ValueError(problem)
    if image_id is not None and fields[ImageResultField.IMAGE_ID] != image_id:
        raise ValueError("it is about another image")


def _record_fields(new: NewImage) -> dict[str, Argument]:
    """Fields of the record that the script does not set itself."""
    return {
        ImageRecordField.FILENAME: new.filename,
        ImageRecordField.DECLARED_TYPE: new.declared_type,
        ImageRecordField.MAX_BYTES: new.max_bytes,
        ImageRecordField.METADATA: new.metadata,
        ImageRecordField.DETECT: new.detect.value,
        ImageRecordField.TAIL: new.tail,
        ImageRecordField.TTL_S: new.ttl_s,
    }


def _result_fields(processed: ProcessedImage) -> dict[str, Argument]:
    """Fields of the entry that the script does not add itself, in the contract's order."""
    return {
        ImageResultField.STORAGE_KEY: processed.storage_key,
        ImageResultField.SHA256: processed.sha256,
        ImageResultField.ETAG: processed.etag,
        ImageResultField.FILE_SIZE: processed.file_size,
        ImageResultField.CONTENT_TYPE: processed.content_type,
        ImageResultField.ORIGINAL_WIDTH: processed.original_width,
        ImageResultField.ORIGINAL_HEIGHT: processed.original_height,
        ImageResultField.PROCESSED_WIDTH: processed.processed_width,
        ImageResultField.PROCESSED_HEIGHT: processed.processed_height,
    }
