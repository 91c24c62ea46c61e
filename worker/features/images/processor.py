"""The internal tool `image.process`: one attempt at an upload, from the spool to the store."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.aio import cancel
from sluice.common.contracts.images import (
    CONTENT_TYPE,
    IMAGE_STEP,
    STAGE_PROGRESS,
    DetailField,
    Detect,
    FailureReason,
    ImageFact,
    Stage,
    StageField,
    storage_key,
)
from sluice.common.contracts.models import HandlerEventType
from sluice.common.errors import StoreUnavailable
from sluice.common.features.images.reader import ImageReader
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.storage.base import Storage, StorageError, StoredObject
from sluice.common.features.images.storage.spool import Spool
from sluice.common.features.images.store import ImageStore
from sluice.common.features.images.types import (
    ImageAnswer,
    ImageOutcome,
    ProcessedImage,
    ProcessingAttempt,
    ProcessingFailure,
)
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.worker.errors import AttemptLost
from sluice.worker.execution.concurrency import JobCanceled, run_until_canceled
from sluice.worker.execution.context import JobContext
from sluice.worker.execution.process_pool.errors import (
    ComputeCrashed,
    ComputeError,
    ComputeTimeout,
    OutOfMemory,
)
from sluice.worker.execution.process_pool.pool import ProcessPool
from sluice.worker.features.images import errors
from sluice.worker.features.images.cleanup import OrphanedObjects, remove_upload
from sluice.worker.features.images.detect.choice import DetectorSelfTest
from sluice.worker.features.images.errors import (
    FilesFailed,
    ProcessCrashed,
    StoreFailed,
    UploadSuperseded,
)
from sluice.worker.features.images.pixels import process
from sluice.worker.features.images.pixels.formats import missing_package
from sluice.worker.features.images.pixels.types import (
    ImageLimits,
    InvalidImage,
    ProcessingRequest,
    ProcessingResult,
)
from sluice.worker.features.images.results import (
    ImageArguments,
    ImageCounters,
    result_from_outcome,
    result_from_record,
    superseded_result,
)

log = logging.getLogger(__name__)

#: Stages of the process, by the note that it sends.
_NOTED_STAGES: Final = {
    stage.value: stage
    for stage in (Stage.VALIDATING, Stage.DECODING, Stage.PROCESSING, Stage.ENCODING)
}


class StageWriter:
    """Writes the stages of one attempt in order, without skipping any."""

    def __init__(self, core: JobContext, store: ImageStore, processing: ProcessingAttempt) -> None:
        self._core = core
        self._store = store
        self._processing = processing
        self._queue: asyncio.Queue[Stage | None] = asyncio.Queue()
        #: The last stage noted.
        self.last_stage = Stage.QUEUED

    def note(self, value: Any) -> None:
        """Queue a stage reported by the process. Anything but a later stage is ignored: the image
        may control the process."""
        stage = _NOTED_STAGES.get(value) if isinstance(value, str) else None
        if stage is not None and _progress(stage) > _progress(self.last_stage):
            self.last_stage = stage
            self._queue.put_nowait(stage)

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Write the noted stages until `close`. Raises AttemptLost or UploadSuperseded."""
        while (stage := await self._queue.get()) is not None:
            await self.write(stage)

    async def write(self, stage: Stage) -> None:
        """Write one stage now. Raises AttemptLost or UploadSuperseded."""
        self.last_stage = stage
        try:
            outcome = await self._store.advance(self._processing, stage)
        except StoreUnavailable as error:  # the work continues; its result is written later
            image_id = self._processing.image_id
            log.warning("image %s: stage %s not written: %s", image_id, stage.value, error)
            return
        if outcome.answer is ImageAnswer.MISSING:
            raise UploadSuperseded(deleted=True)
        if outcome.answer is ImageAnswer.LOST:
            raise AttemptLost
        await self._core.emit(
            HandlerEventType.PROGRESS,
            {
                StageField.IMAGE_ID: self._processing.image_id,
                StageField.STAGE: stage.value,
                StageField.PROGRESS: _progress(stage),
                StageField.ATTEMPT: self._core.attempt,
            },
            step=IMAGE_STEP,
        )
        crashpoints.reach(CrashPoint.AFTER_IMAGE_STAGE)


def _progress(stage: Stage) -> int:
    return int(STAGE_PROGRESS[stage])


#: Step saved for the next attempt: a process has crashed on this upload.
_CRASHED_STEP: Final = "crashed"


class ProcessorDependencies(NamedTuple):
    """Dependencies of every attempt."""

    store: ImageStore
    reader: ImageReader
    spool: Spool
    storage: Storage
    pool: ProcessPool
    self_test: DetectorSelfTest
    limits: ImageLimits
    timeout_s: float
    counters: ImageCounters
    orphans: OrphanedObjects


class ProcessingFailed(Exception):
    """The upload has failed for good; `failed` has the reason."""

    def __init__(self, failed: ProcessingFailure) -> None:
        super().__init__(failed.message)
        self.failed = failed


class UploadAlreadyEnded(Exception):
    """The upload was ended by another attempt or worker."""

    def __init__(self, record: ImageRecord) -> None:
        super().__init__()
        self.record = record


class Processor:
    """Processes images. Any number may be submitted; the pool bounds how many run at once."""

    def __init__(self, deps: ProcessorDependencies) -> None:
        self._deps = deps

    async def process(self, core: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        """Process an upload to its end; returns the result of its core job."""
        processing = ProcessingAttempt(*ImageArguments.of(args), core.fence)
        try:
            record = await self._current_record(processing)
            if record.ended:
                await remove_upload(self._deps.spool, *processing[:2], core.attempt)
                return result_from_record(record)
            attempt = _UploadAttempt(self._deps, core, processing, record)
            return await run_until_canceled(core, attempt.run())
        except JobCanceled:
            return None
        except UploadSuperseded as reason:
            await self._clean_up(processing, core.attempt, reason.deleted)
            return superseded_result(processing)
        except AttemptLost:
            # Lost is either the attempt or the upload. If it is the upload, no other attempt ends
            # the core job.
            try:
                await self._current_record(processing)
            except UploadSuperseded as reason:
                await self._clean_up(processing, core.attempt, reason.deleted)
                return superseded_result(processing)
            raise

    async def _current_record(self, processing: ProcessingAttempt) -> ImageRecord:
        """The record of the image; raises UploadSuperseded if it belongs to another upload."""
        record = await self._deps.reader.record(processing.image_id)
        if record is None or record.upload_id != processing.upload_id:
            raise UploadSuperseded(deleted=record is None)
        return record

    async def _clean_up(self, processing: ProcessingAttempt, attempts: int, deleted: bool) -> None:
        """Remove the files of a superseded upload.

        A delete may have checked for the object before this attempt stored it.
        """
        image_id, upload_id, _ = processing
        log.info("image %s: upload %s superseded, discarded", image_id, upload_id)
        await remove_upload(self._deps.spool, image_id, upload_id, attempts)
        if deleted:
            await self._deps.orphans.remove(image_id)


class _UploadAttempt:
    """One attempt of one upload."""

    def __init__(
        self,
        deps: ProcessorDependencies,
        core: JobContext,
        processing: ProcessingAttempt,
        record: ImageRecord,
    ) -> None:
        self._deps = deps
        self._core = core
        self._processing = processing
        self._record = record
        self._stages = StageWriter(core, deps.store, processing)
        #: Details found by the process, plus timings.
        self._details: dict[str, Any] = {}

    async def run(self) -> dict[str, Any]:
        """Returns the result of the core job.

        Raises ImageFailed after the failure has been recorded.
        """
        image_id, upload_id, _ = self._processing
        output = self._deps.spool.output(image_id, upload_id, self._core.attempt)
        try:
            result = await self._process(output)
            processed = await self._upload(result, output)
            outcome = await self._deps.store.succeed(self._processing, processed)
        except UploadAlreadyEnded as ended:
            await remove_upload(self._deps.spool, image_id, upload_id, self._core.attempt)
            return result_from_record(ended.record)
        except ProcessingFailed as failure:
            log.warning("image %s failed: %s", image_id, failure)
            outcome = await self._deps.store.fail(self._processing, failure.failed)
        finally:
            output.unlink(missing_ok=True)
        crashpoints.reach(CrashPoint.AFTER_IMAGE_RESULT)
        return await self._finish(outcome)

    async def _process(self, output: Path) -> ProcessingResult:
        """Run the stages in a child process and write each stage as it begins."""
        order = await self._build_request(output)
        counters = self._deps.counters
        try:
            with counters.under_way():
                return await self._run_with_stages(order)
        except InvalidImage as refused:
            raise ProcessingFailed(errors.invalid_image_failure(refused)) from None
        except ComputeTimeout as error:
            raise ProcessingFailed(errors.timeout_failure(error.timeout_s)) from None
        except OutOfMemory:
            raise ProcessingFailed(
                errors.stage_failure(self._stages.last_stage, FailureReason.OUT_OF_MEMORY)
            ) from None
        except ComputeCrashed as error:
            if _CRASHED_STEP in await self._core.saved():
                raise ProcessingFailed(
                    errors.stage_failure(self._stages.last_stage, FailureReason.CRASHED)
                ) from None
            await self._core.save(_CRASHED_STEP, True)
            raise ProcessCrashed(str(error)) from None
        except (ComputeError, ImportError) as error:
            raise ProcessingFailed(
                errors.internal_failure(f"{type(error).__name__}: {error}")
            ) from None
        except FileNotFoundError:
            raise ProcessingFailed(errors.UPLOAD_MISSING) from None
        except OSError as error:
            raise FilesFailed(f"cannot access a file of the image: {error}") from None

    async def _build_request(self, output: Path) -> ProcessingRequest:
        deps, record = self._deps, self._record
        if missing := missing_package(deps.limits.formats):
            raise ProcessingFailed(errors.internal_failure(missing))
        path = deps.spool.path(record.image_id, record.upload_id)
        if not await asyncio.to_thread(path.is_file):
            raise ProcessingFailed(errors.UPLOAD_MISSING)
        limits = deps.limits
        if record.max_bytes:
            max_bytes = min(record.max_bytes, limits.max_bytes)
            limits = dataclasses.replace(limits, max_bytes=max_bytes)
        return ProcessingRequest(
            path=str(path),
            output=str(output),
            declared_type=record.uploaded_type or record.declared_type,
            limits=limits,
            detect=record.detect is not Detect.NONE,
            detector=await deps.self_test.outcome(),
        )

    async def _run_with_stages(self, order: ProcessingRequest) -> ProcessingResult:
        """Run the process and write its stages concurrently.

        Ends the process if a stage write is refused.
        """
        run = self._deps.pool.run(
            process, order, on_note=self._stages.note, timeout_s=self._deps.timeout_s
        )
        processing_task = asyncio.ensure_future(run)
        writer_task = asyncio.ensure_future(self._stages.run())
        try:
            await asyncio.wait({processing_task, writer_task}, return_when=asyncio.FIRST_COMPLETED)
            if not writer_task.done():
                self._stages.close()
            await writer_task
            return processing_task.result()
        finally:
            await cancel(processing_task, writer_task)

    async def _upload(self, result: ProcessingResult, output: Path) -> ProcessedImage:
        """Write the object to the store, before the record refers to it."""
        began = time.monotonic()
        await self._stages.write(Stage.UPLOADING)
        key = storage_key(self._processing.image_id)
        try:
            data = await asyncio.to_thread(output.read_bytes)
            stored = await self._put(key, data)
        except OSError as error:
            raise FilesFailed(f"cannot access a file of the image: {error}") from None
        except StorageError as error:
            raise StoreFailed(str(error)) from error
        timings = dict(result.details.get(DetailField.TIMINGS_MS) or {})
        timings[Stage.UPLOADING.value] = round((time.monotonic() - began) * 1000)
        self._details = {**result.details, DetailField.TIMINGS_MS: timings}
        crashpoints.reach(CrashPoint.BEFORE_IMAGE_RESULT)
        return ProcessedImage(
            storage_key=key,
            sha256=result.sha256,
            etag=stored.etag,
            file_size=stored.size_bytes,
            content_type=CONTENT_TYPE,
            original_width=result.original_width,
            original_height=result.original_height,
            processed_width=result.width,
            processed_height=result.height,
            details=codec.dumps(self._details),
        )

    async def _put(self, key: str, data: bytes) -> StoredObject:
        """Put the object.

        A put cannot be stopped, so a cancellation leaves its clean-up to `orphans`.
        """
        put = self._deps.storage.put(key, data, CONTENT_TYPE, self._check_current)
        putting = asyncio.ensure_future(put)
        try:
            return await asyncio.shield(putting)
        except asyncio.CancelledError:
            self._deps.orphans.remove_after(putting, self._processing.image_id)
            raise

    async def _check_current(self) -> None:
        """Raise unless this attempt still owns the upload.

        The store cannot check that, and the existing object may be of a later attempt.
        """
        outcome = await self._deps.store.advance(self._processing, Stage.UPLOADING)
        if outcome.answer is ImageAnswer.MISSING:
            raise UploadSuperseded(deleted=True)
        if outcome.answer is ImageAnswer.LOST:
            raise AttemptLost
        if outcome.answer is ImageAnswer.ALREADY:  # at that stage already, or ended
            record = await self._deps.reader.record(self._processing.image_id)
            if record is None or record.upload_id != self._processing.upload_id:
                raise UploadSuperseded(deleted=record is None)
            if record.ended:
                raise UploadAlreadyEnded(record)

    async def _finish(self, outcome: ImageOutcome) -> dict[str, Any]:
        """Return the core job's result after the record was written.

        Raises ImageFailed, UploadSuperseded or AttemptLost.
        """
        if outcome.answer is ImageAnswer.MISSING:
            raise UploadSuperseded(deleted=True)
        if outcome.answer is ImageAnswer.LOST:
            raise AttemptLost
        image_id, upload_id, _ = self._processing
        await remove_upload(self._deps.spool, image_id, upload_id, self._core.attempt)
        if outcome.answer is ImageAnswer.ALREADY:
            record = await self._deps.reader.record(image_id)
            if record is None or record.upload_id != upload_id or not record.ended:
                raise UploadSuperseded(deleted=record is None)
            return result_from_record(record)
        entry = outcome.facts.get(ImageFact.OUTCOME) or {}
        self._deps.counters.ended(entry)
        return result_from_outcome(entry, self._details)
