"""Why nothing came of an image, as its core job says it."""

from __future__ import annotations

from common.contracts.images import ErrorCode, ImageErrorKind
from worker.errors import JobError, TransientError


class ImageFailed(JobError):
    """There is something wrong with the image; its record says so already."""

    kind = ImageErrorKind.FAILED.value

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")


class StoreFailed(TransientError):
    """The store did not take it, after several tries; perhaps it does later."""

    kind = ImageErrorKind.STORE.value


class FilesFailed(TransientError):
    """Its files could not be read or written, which is no fault of the image."""

    kind = ImageErrorKind.FILES.value


class ProcessCrashed(TransientError):
    """The process that worked on it ended in the middle, for the first time."""

    kind = ImageErrorKind.CRASHED.value


class Superseded(Exception):
    """The image was deleted, or another upload of it counts: nobody wants this one any more."""

    def __init__(self, deleted: bool) -> None:
        super().__init__()
        self.deleted = deleted


#: Which error code a kind of job error comes to in the end.
CODES = {
    ImageErrorKind.STORE.value: ErrorCode.UPLOAD_FAILED,
    ImageErrorKind.CRASHED.value: ErrorCode.PROCESSING_FAILED,
}
