"""Arguments and results of an image's core job, and counters of the results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluice.common.contracts import values_of
from sluice.common.contracts.images import (
    ImageArgument,
    ImageFailureField,
    ImageJobResultField,
    ImageResultField,
    ImageResultStatus,
)
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import ProcessingAttempt
from sluice.common.observability.heartbeats import ImagesReading
from sluice.worker.errors import InvalidPayload
from sluice.worker.features.images.errors import ImageFailed

if TYPE_CHECKING:
    from sluice.worker.features.images.detect.choice import DetectorChoice

#: Both ids are parts of a file name.
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")


class ImageArguments(NamedTuple):
    """Arguments of `image.process`: the image and the upload."""

    image_id: str
    upload_id: str

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> ImageArguments:
        """Parse a payload's `args`. Raises InvalidPayload for invalid ids."""
        found = []
        for argument in (ImageArgument.IMAGE_ID, ImageArgument.UPLOAD_ID):
            value = args.get(argument)
            if not isinstance(value, str) or not _ID.fullmatch(value):
                raise InvalidPayload(f"invalid {argument}")
            found.append(value)
        return cls(*found)


def result_from_outcome(outcome: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """Result for an entry of the result stream; raises ImageFailed for a failure."""
    if outcome.get(ImageResultField.STATUS) != ImageResultStatus.PROCESSED.value:
        raise ImageFailed(
            str(outcome.get(ImageFailureField.ERROR_CODE) or ""),
            str(outcome.get(ImageFailureField.ERROR_MESSAGE) or ""),
        )
    return {**outcome, ImageJobResultField.DETAILS: dict(details)}


def result_from_record(record: ImageRecord) -> dict[str, Any]:
    """Result for an upload that has already ended; raises ImageFailed for a failure."""
    if record.failure is not None or record.result is None:
        failure = record.failure
        raise ImageFailed(
            failure.error_code if failure else "", failure.error_message if failure else ""
        )
    result = record.result
    fields = {
        ImageResultField.IMAGE_ID: record.image_id,
        ImageResultField.STATUS: ImageResultStatus.PROCESSED.value,
        ImageResultField.STORAGE_KEY: result.storage_key,
        ImageResultField.SHA256: result.sha256,
        ImageResultField.ETAG: result.etag,
        ImageResultField.FILE_SIZE: str(result.file_size),
        ImageResultField.CONTENT_TYPE: result.content_type,
        ImageResultField.ORIGINAL_WIDTH: str(result.original_width),
        ImageResultField.ORIGINAL_HEIGHT: str(result.original_height),
        ImageResultField.PROCESSED_WIDTH: str(result.processed_width),
        ImageResultField.PROCESSED_HEIGHT: str(result.processed_height),
        ImageResultField.PROCESSED_AT: result.processed_at,
    }
    outcome = dict(fields.items())
    return result_from_outcome(outcome, record.detail())


def superseded_result(processing: ProcessingAttempt) -> dict[str, Any]:
    return {
        ImageArgument.IMAGE_ID: processing.image_id,
        ImageArgument.UPLOAD_ID: processing.upload_id,
        ImageJobResultField.SUPERSEDED: True,
    }


def parse_result_entry(result: Any) -> dict[str, str] | None:
    """The result entry contained in the result of a core job; None if there is none."""
    if not isinstance(result, dict):
        return None
    found = {field: result.get(field) for field in values_of(ImageResultField)}
    if not all(isinstance(value, str) for value in found.values()):
        return None
    return {name: str(value) for name, value in found.items()}


class ImageCounters:
    """Counters for the worker's heartbeat."""

    def __init__(self, slots: int, formats: Iterable[str] = ()) -> None:
        """`formats`: those that the worker supports."""
        self._slots = slots
        self._formats = sorted(formats)
        self._under_way = 0
        self.processed = 0
        self.failed = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count an image that has a process or waits for one."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def ended(self, outcome: Mapping[str, Any]) -> None:
        """Count an image by the outcome in its result entry."""
        if outcome.get(ImageResultField.STATUS) == ImageResultStatus.PROCESSED.value:
            self.processed += 1
        else:
            self.failed += 1

    def reading(self, choice: DetectorChoice) -> ImagesReading:
        busy = min(self._under_way, self._slots)
        return ImagesReading(
            detector=choice.name,
            detector_why=choice.unavailable_reason,
            blur=choice.blur.value,
            formats=self._formats,
            places=self._slots,
            busy=busy,
            waiting=self._under_way - busy,
            processed=self.processed,
            failed=self.failed,
        )
