"""Receives an upload into the spool and starts its job, once per image.

The upload claims the image before the first byte is read, so that of concurrent uploads of one
image only one is read. If the upload fails before its job is submitted, the claim is released and
the file removed. If this process dies, the claim expires.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from sluice.common.contracts.images import ImageFact
from sluice.common.errors import SluiceError, StoreUnavailable
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import CompletedUpload, ImageAnswer
from sluice.common.observability import logs
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.images import lookup
from sluice.gateway.features.images.lookup import image_not_found
from sluice.gateway.features.images.state import ImageServices, images_of
from sluice.gateway.features.images.upload.sink import (
    FORM,
    FORM_BYTES,
    OCTETS,
    FileSink,
    FormSink,
    Sink,
    SpooledUpload,
    UploadWriter,
    accepted_types,
    check_type,
    normalize_type,
    unsupported_media_type,
)
from sluice.gateway.http.body import exceeds, too_large
from sluice.gateway.http.problems import Problem, retry_headers
from sluice.gateway.jobs.admission import admission_of
from sluice.gateway.jobs.ids import new_home_job_id
from sluice.gateway.state import GatewayState, state_of

#: Longest accepted Content-Type.
_MOST_TYPE: Final = 256


class UploadHeaders(NamedTuple):
    """Headers of an upload, checked before the body is read."""

    content_type: str
    #: The boundary of a form; None if the body is the file.
    boundary: bytes | None
    length: bytes
    encoding: str

    @classmethod
    def of(cls, headers: Headers) -> UploadHeaders:
        return cls(
            headers.get("content-type", ""),
            None,
            headers.get("content-length", "").encode("latin-1").lstrip(b"0"),
            headers.get("content-encoding", "").strip().lower(),
        )

    def validate(self, limit: int, accepted: Sequence[str]) -> UploadHeaders:
        """The headers with a normalised type; raises 413 and 415, in this order.

        `accepted`: media types that workers process.
        """
        is_form = normalize_type(self.content_type) == FORM
        if exceeds(self.length, limit + FORM_BYTES if is_form else limit):
            raise too_large(limit)
        if len(self.content_type) > _MOST_TYPE or self.encoding not in ("", "identity"):
            raise unsupported_media_type("Uploads must not have a Content-Encoding", accepted)
        if not is_form:
            return self._replace(content_type=check_type(self.content_type, accepted))
        _, options = parse_options_header(self.content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise Problem(
                400, "malformed_multipart", "The Content-Type of the form has no boundary."
            )
        return self._replace(content_type=OCTETS, boundary=boundary)


log = logging.getLogger(__name__)

#: Lifetime of the claim, and how often it is renewed while bytes arrive.
CLAIM_TTL_MS: Final = 30_000
CLAIM_RENEW_EVERY_S: Final = 8.0
#: Clean-up tasks that are not awaited; keeps references to them.
_cleanup_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class UploadAttempt:
    """One attempt to upload one image."""

    request: Request
    state: GatewayState
    images: ImageServices
    record: ImageRecord
    declared: UploadHeaders
    limit: int
    accepted: Sequence[str]
    upload_id: str

    @property
    def image_id(self) -> str:
        return self.record.image_id


async def upload(request: Request, record: ImageRecord) -> str:
    """Receive the upload of an image; returns the id of the job that processes it."""
    state, images = state_of(request), images_of(request)
    hard_max = state.settings.image_upload_hard_max
    limit = min(record.max_bytes or hard_max, hard_max)
    accepted = accepted_types(await state.workers.cached())
    declared = UploadHeaders.of(request.headers).validate(limit, accepted)
    attempt = UploadAttempt(
        request, state, images, record, declared, limit, accepted, os.urandom(8).hex()
    )
    writer = UploadWriter(_sink(attempt), images.spool_threads)
    submitted = False
    try:
        await _claim(attempt)
        received = await _receive(attempt, writer)
        submitted = True
        return await _submit(attempt, received)
    except BaseException as error:
        # If it is unknown whether Redis accepted the job, the file stays, since the job may need
        # it; otherwise a worker's sweep removes it later.
        maybe_submitted = submitted and isinstance(error, StoreUnavailable)
        if not isinstance(error, Problem) or error.code != _CONFLICT:
            cleanup = _clean_up(attempt, writer, maybe_submitted=maybe_submitted)
            await _run_cleanup(cleanup, wait=not isinstance(error, StoreUnavailable))
        raise
    finally:
        images.metrics.received_bytes += writer.size_bytes


_CONFLICT: Final = lookup.already_uploaded().code


def _sink(attempt: UploadAttempt) -> Sink:
    declared = attempt.declared
    file = FileSink(
        attempt.images.spool,
        attempt.image_id,
        attempt.upload_id,
        attempt.limit,
        declared.content_type,
    )
    return (
        file if declared.boundary is None else FormSink(declared.boundary, file, attempt.accepted)
    )


async def _claim(attempt: UploadAttempt) -> None:
    state = attempt.state
    outcome = await attempt.images.store.claim(attempt.image_id, attempt.upload_id, CLAIM_TTL_MS)
    if outcome.answer is ImageAnswer.MISSING:
        raise image_not_found()
    if outcome.answer is not ImageAnswer.OK:
        raise lookup.already_uploaded()
    if state.pressure.refusing:
        raise state.pressure.problem()


async def _receive(attempt: UploadAttempt, writer: UploadWriter) -> SpooledUpload:
    loop = asyncio.get_running_loop()
    held = loop.time()
    try:
        async for chunk in attempt.request.stream():
            if chunk:
                await writer.write(chunk)
            if loop.time() - held >= CLAIM_RENEW_EVERY_S:
                await _renew_claim(attempt)
                held = loop.time()
        return await writer.finish()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The connection closed within the body.") from None
    except OSError as error:
        log.error("spool %s: upload not written: %s", attempt.images.spool.directory, error)
        raise Problem(
            503,
            "spool_unavailable",
            "The gateway cannot store uploads at the moment; see its log. Try again later.",
            headers=retry_headers(10.0),
        ) from None


async def _renew_claim(attempt: UploadAttempt) -> None:
    outcome = await attempt.images.store.extend_claim(
        attempt.image_id, attempt.upload_id, CLAIM_TTL_MS
    )
    if outcome.answer is not ImageAnswer.OK:
        raise lookup.upload_lost()


async def _submit(attempt: UploadAttempt, received: SpooledUpload) -> str:
    request, state = attempt.request, attempt.state
    uploaded = CompletedUpload(
        attempt.image_id,
        attempt.upload_id,
        # The job belongs to the tenant of the image.
        new_home_job_id(state.lines.partitions, attempt.record.tail or caller_of(request).tail),
        received.content_type,
        received.size_bytes,
        received.sha256,
    )
    admission = admission_of(request)
    outcome = await lookup.call_with_admission(
        request, lambda: attempt.images.store.submit(uploaded, admission)
    )
    job_id = str(outcome.facts.get(ImageFact.JOB_ID, "")) or uploaded.job_id
    logs.job_id.set(job_id)
    return job_id


async def _clean_up(attempt: UploadAttempt, writer: UploadWriter, *, maybe_submitted: bool) -> None:
    """Remove a failed upload and release its claim."""
    try:
        if not maybe_submitted:
            await writer.discard()
        released = await attempt.images.store.release(attempt.image_id, attempt.upload_id)
        if maybe_submitted and released.answer is ImageAnswer.OK:
            await writer.discard()  # no job was submitted
    except (SluiceError, OSError) as error:
        log.warning("failed upload not removed, it expires by itself: %s", error)


async def _run_cleanup(cleanup: Coroutine[Any, Any, None], *, wait: bool) -> None:
    """Run the clean-up even if the request is canceled. `wait` False: respond first."""
    task = asyncio.ensure_future(cleanup)
    _cleanup_tasks.add(task)
    task.add_done_callback(_cleanup_tasks.discard)
    if wait:
        await asyncio.shield(task)
