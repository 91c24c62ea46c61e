"""How an image ended, as the result of its core job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.contracts.images import (
    FailureField,
    ImageArgument,
    JobResultField,
    ResultField,
    ResultStatus,
)
from common.images.records import ImageRecord
from common.images.types import Processing
from worker.images.errors import ImageFailed


def result_of(outcome: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
    """Of a success as the result stream tells it; raises ImageFailed for a failure."""
    if outcome.get(ResultField.STATUS.value) != ResultStatus.PROCESSED.value:
        raise ImageFailed(
            str(outcome.get(FailureField.ERROR_CODE.value) or ""),
            str(outcome.get(FailureField.ERROR_MESSAGE.value) or ""),
        )
    return {**outcome, JobResultField.DETAILS.value: dict(details)}


def told_by(record: ImageRecord) -> dict[str, Any]:
    """The same of an upload that has ended before."""
    if record.failure is not None or record.result is None:
        failure = record.failure
        raise ImageFailed(
            failure.error_code if failure else "", failure.error_message if failure else ""
        )
    result = record.result
    fields = {
        ResultField.IMAGE_ID: record.image_id,
        ResultField.STATUS: ResultStatus.PROCESSED.value,
        ResultField.STORAGE_KEY: result.storage_key,
        ResultField.SHA256: result.sha256,
        ResultField.ETAG: result.etag,
        ResultField.FILE_SIZE: str(result.file_size),
        ResultField.CONTENT_TYPE: result.content_type,
        ResultField.ORIGINAL_WIDTH: str(result.original_width),
        ResultField.ORIGINAL_HEIGHT: str(result.original_height),
        ResultField.PROCESSED_WIDTH: str(result.processed_width),
        ResultField.PROCESSED_HEIGHT: str(result.processed_height),
        ResultField.PROCESSED_AT: result.processed_at,
    }
    outcome = {field.value: value for field, value in fields.items()}
    return result_of(outcome, record.detail())


def superseded(processing: Processing) -> dict[str, Any]:
    """Nobody wants it any more."""
    return {
        ImageArgument.IMAGE_ID.value: processing.image_id,
        ImageArgument.UPLOAD_ID.value: processing.upload_id,
        JobResultField.SUPERSEDED.value: True,
    }


def entry_in(result: Any) -> dict[str, str] | None:
    """Fields of a result entry in the result of a core job; None where it has none."""
    if not isinstance(result, dict):
        return None
    found = {field.value: result.get(field.value) for field in ResultField}
    if not all(isinstance(value, str) for value in found.values()):
        return None
    return {name: str(value) for name, value in found.items()}
