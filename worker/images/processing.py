"""The internal tool `image.process`: one attempt of an upload, from the spool to the store."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from common import codec, crashpoints
from common.cancellation import cancel
from common.contracts.images import (
    CONTENT_TYPE,
    DetailField,
    Detect,
    ImageFact,
    Reason,
    Stage,
    storage_key,
)
from common.crashpoints import CrashPoint
from common.images.reader import ImageReader
from common.images.records import ImageRecord
from common.images.spool import Spool
from common.images.storage import Storage, StorageError, Stored
from common.images.store import ImageStore
from common.images.types import Failed, ImageAnswer, ImageOutcome, Processed, Processing
from worker.compute.errors import ComputeCrashed, ComputeError, ComputeTimeout, OutOfMemory
from worker.compute.pool import Pool
from worker.context import JobContext
from worker.errors import AttemptLost
from worker.images import failures
from worker.images.arguments import ImageArguments
from worker.images.detect.trial import Trial
from worker.images.errors import FilesFailed, ProcessCrashed, StoreFailed, Superseded
from worker.images.leftovers import Leftovers
from worker.images.numbers import Numbers
from worker.images.outcomes import result_of, superseded, told_by
from worker.images.pixels import Limits, Made, Order, Refused, process
from worker.images.pixels.availability import missing
from worker.images.spooled import forget
from worker.images.stages import Stages
from worker.unless_canceled import Stopped, unless_canceled

log = logging.getLogger(__name__)

#: What an attempt saves for the next one: a process has ended in the middle of the work.
_CRASHED: Final = "crashed"


class Means(NamedTuple):
    """What every attempt uses."""

    store: ImageStore
    reader: ImageReader
    spool: Spool
    storage: Storage
    pool: Pool
    trial: Trial
    limits: Limits
    timeout_s: float
    numbers: Numbers
    leftovers: Leftovers


class Failure(Exception):
    """Nothing will come of the upload, and this is why."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class Ended(Exception):
    """The upload has ended without this attempt: somebody else has said how."""

    def __init__(self, record: ImageRecord) -> None:
        super().__init__()
        self.record = record


class Processor:
    """Processes images, any number at once; the pool decides how many really."""

    def __init__(self, means: Means) -> None:
        self._means = means

    async def process(self, core: JobContext, args: dict[str, Any]) -> dict[str, Any] | None:
        """Take an upload to its end; the result of its core job."""
        processing = Processing(*ImageArguments.of(args), core.fence)
        try:
            record = await self._counting(processing)
            if record.ended:
                await forget(self._means.spool, *processing[:2], core.attempt)
                return told_by(record)
            attempt = _Attempt(self._means, core, processing, record)
            return await unless_canceled(core, attempt.run())
        except Stopped:
            return None
        except Superseded as reason:
            await self._clear_away(processing, core.attempt, reason.deleted)
            return superseded(processing)
        except AttemptLost:
            # Our attempt, or our upload: of that nobody else will tell the core.
            try:
                await self._counting(processing)
            except Superseded as reason:
                await self._clear_away(processing, core.attempt, reason.deleted)
                return superseded(processing)
            raise

    async def _counting(self, processing: Processing) -> ImageRecord:
        """The record; raises Superseded unless it waits for this upload, or has its end."""
        record = await self._means.reader.record(processing.image_id)
        if record is None or record.upload_id != processing.upload_id:
            raise Superseded(deleted=record is None)
        return record

    async def _clear_away(self, processing: Processing, attempts: int, deleted: bool) -> None:
        """Nobody else will: whoever deleted the image may have looked before we stored it."""
        image_id, upload_id, _ = processing
        log.info("upload %s of image %s is not wanted any more", upload_id, image_id)
        await forget(self._means.spool, image_id, upload_id, attempts)
        if deleted:
            await self._means.leftovers.remove(image_id)


class _Attempt:
    """One attempt of one upload."""

    def __init__(
        self, means: Means, core: JobContext, processing: Processing, record: ImageRecord
    ) -> None:
        self._means = means
        self._core = core
        self._processing = processing
        self._record = record
        self._stages = Stages(core, means.store, processing)
        #: What was found out beside the pixels.
        self._details: dict[str, Any] = {}

    async def run(self) -> dict[str, Any]:
        """What came of it. Raises ImageFailed once the record says why nothing did."""
        image_id, upload_id, _ = self._processing
        output = self._means.spool.output(image_id, upload_id, self._core.attempt)
        try:
            made = await self._make(output)
            processed = await self._keep(made, output)
            outcome = await self._means.store.succeed(self._processing, processed)
        except Ended as ended:
            await forget(self._means.spool, image_id, upload_id, self._core.attempt)
            return told_by(ended.record)
        except Failure as failure:
            log.warning("image %s failed: %s", image_id, failure)
            outcome = await self._means.store.fail(self._processing, failure.failed)
        finally:
            output.unlink(missing_ok=True)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_IMAGE_RESULT)
        return await self._ended(outcome)

    async def _make(self, output: Path) -> Made:
        """The stages that a process does, told as it does them."""
        order = await self._order(output)
        numbers = self._means.numbers
        try:
            with numbers.under_way():
                return await self._told(order)
        except Refused as refused:
            raise Failure(failures.of_refusal(refused)) from None
        except ComputeTimeout as error:
            raise Failure(failures.of_time(error.timeout_s)) from None
        except OutOfMemory:
            raise Failure(failures.of_stage(self._stages.at, Reason.OUT_OF_MEMORY)) from None
        except ComputeCrashed as error:
            if _CRASHED in await self._core.saved():
                raise Failure(failures.of_stage(self._stages.at, Reason.CRASHED)) from None
            await self._core.save(_CRASHED, True)
            raise ProcessCrashed(str(error)) from None
        except (ComputeError, ImportError) as error:
            raise Failure(failures.internal(f"{type(error).__name__}: {error}")) from None
        except FileNotFoundError:
            raise Failure(failures.NO_FILE) from None
        except OSError as error:
            raise FilesFailed(f"a file of the image cannot be used: {error}") from None

    async def _order(self, output: Path) -> Order:
        means, record = self._means, self._record
        if lacking := missing(means.limits.formats):
            raise Failure(failures.internal(lacking))
        path = means.spool.path(record.image_id, record.upload_id)
        if not await asyncio.to_thread(path.is_file):
            raise Failure(failures.NO_FILE)
        limits = means.limits
        if record.max_bytes:
            max_bytes = min(record.max_bytes, limits.max_bytes)
            limits = dataclasses.replace(limits, max_bytes=max_bytes)
        return Order(
            path=str(path),
            output=str(output),
            declared_type=record.uploaded_type or record.declared_type,
            limits=limits,
            detect=record.detect is not Detect.NONE,
            detector=await means.trial.outcome(),
        )

    async def _told(self, order: Order) -> Made:
        """The work, with its stages written beside it; it ends where one may not be written."""
        run = self._means.pool.run(
            process, order, on_note=self._stages.note, timeout_s=self._means.timeout_s
        )
        making = asyncio.ensure_future(run)
        writing = asyncio.ensure_future(self._stages.run())
        try:
            await asyncio.wait({making, writing}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                self._stages.close()
            await writing
            return making.result()
        finally:
            await cancel(making, writing)

    async def _keep(self, made: Made, output: Path) -> Processed:
        """Into the store, where it is before anybody hears of it."""
        began = time.monotonic()
        await self._stages.tell(Stage.UPLOADING)
        key = storage_key(self._processing.image_id)
        try:
            data = await asyncio.to_thread(output.read_bytes)
            stored = await self._put(key, data)
        except OSError as error:
            raise FilesFailed(f"a file of the image cannot be used: {error}") from None
        except StorageError as error:
            raise StoreFailed(str(error)) from error
        timings = dict(made.details.get(DetailField.TIMINGS_MS.value) or {})
        timings[Stage.UPLOADING.value] = round((time.monotonic() - began) * 1000)
        self._details = {**made.details, DetailField.TIMINGS_MS.value: timings}
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.BEFORE_IMAGE_RESULT)
        return Processed(
            storage_key=key,
            sha256=made.sha256,
            etag=stored.etag,
            file_size=stored.size_bytes,
            content_type=CONTENT_TYPE,
            original_width=made.original_width,
            original_height=made.original_height,
            processed_width=made.width,
            processed_height=made.height,
            details=codec.dumps(self._details),
        )

    async def _put(self, key: str, data: bytes) -> Stored:
        """What writes cannot be stopped: whoever stops us leaves it to somebody who waits."""
        put = self._means.storage.put(key, data, CONTENT_TYPE, self._may_store)
        putting = asyncio.ensure_future(put)
        try:
            return await asyncio.shield(putting)
        except asyncio.CancelledError:
            self._means.leftovers.watch(putting, self._processing.image_id)
            raise

    async def _may_store(self) -> None:
        """Raise unless it is this attempt of this upload that counts: the store cannot know, and
        what is there may be a later one's."""
        outcome = await self._means.store.advance(self._processing, Stage.UPLOADING)
        if outcome.answer is ImageAnswer.MISSING:
            raise Superseded(deleted=True)
        if outcome.answer is ImageAnswer.LOST:
            raise AttemptLost
        if outcome.answer is ImageAnswer.ALREADY:  # at that stage, or at its end
            record = await self._means.reader.record(self._processing.image_id)
            if record is None or record.upload_id != self._processing.upload_id:
                raise Superseded(deleted=record is None)
            if record.ended:
                raise Ended(record)

    async def _ended(self, outcome: ImageOutcome) -> dict[str, Any]:
        """What the core is told once the record says it; raises ImageFailed, or what we lost."""
        if outcome.answer is ImageAnswer.MISSING:
            raise Superseded(deleted=True)
        if outcome.answer is ImageAnswer.LOST:
            raise AttemptLost
        image_id, upload_id, _ = self._processing
        await forget(self._means.spool, image_id, upload_id, self._core.attempt)
        if outcome.answer is ImageAnswer.ALREADY:
            record = await self._means.reader.record(image_id)
            if record is None or record.upload_id != upload_id or not record.ended:
                raise Superseded(deleted=record is None)
            return told_by(record)
        told = outcome.facts.get(ImageFact.OUTCOME.value) or {}
        self._means.numbers.ended(told)
        return result_of(told, self._details)
