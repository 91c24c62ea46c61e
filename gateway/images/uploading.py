"""The bytes of an image, from a request to the spool and a job: whole, once, or not at all.

The guard is claimed before the first byte is read, so that of many uploads of one image one is
taken and the others cost nothing. Whatever ends this one before its job is there gives the guard
back and leaves no file. Should this process die, the guard is anybody's once its time is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from common import logs
from common.contracts.images import ImageFact
from common.errors import SluiceError, StoreUnavailable
from common.images.records import ImageRecord
from common.images.types import ImageAnswer, Uploaded
from gateway.callers import caller_of
from gateway.ids import new_home_job_id
from gateway.images import refusals
from gateway.images.declared import Declared
from gateway.images.intake import Intake
from gateway.images.lookup import no_such_image
from gateway.images.sinks import FileSink, FormSink, Received, Sink
from gateway.problems import Problem, retry_headers
from gateway.state import GatewayState, state_of

log = logging.getLogger(__name__)

#: How long the guard is held without a sign of life, and how often one is given while bytes come.
HOLD_MS: Final = 30_000
HOLD_EVERY_S: Final = 8.0
#: What still has to be cleared up, for tasks that nobody waits for.
_clearing: set[asyncio.Task[None]] = set()


@dataclass(frozen=True)
class Upload:
    """One attempt to upload one image."""

    request: Request
    state: GatewayState
    record: ImageRecord
    declared: Declared
    limit: int
    upload_id: str
    threads: Executor

    @property
    def image_id(self) -> str:
        """Of which image."""
        return self.record.image_id


async def upload(request: Request, record: ImageRecord, threads: Executor) -> str:
    """Take the body of a request for an image; the id of the job that processes it."""
    state = state_of(request)
    hard_max = state.settings.image_upload_hard_max
    limit = min(record.max_bytes or hard_max, hard_max)
    declared = Declared.of(request.headers).checked(limit)
    this = Upload(request, state, record, declared, limit, os.urandom(8).hex(), threads)
    intake = Intake(_sink(this), threads)
    submitted = False
    try:
        await _claim(this)
        received = await _receive(this, intake)
        submitted = True
        return await _submit(this, received)
    except BaseException as error:
        # Where nobody knows whether Redis has taken the job, the file stays as long as it may be
        # needed; a worker's sweep removes it where it is not.
        unsure = submitted and isinstance(error, StoreUnavailable)
        if not isinstance(error, Problem) or error.code != _CONFLICT:
            clearing = _clear_up(this, intake, unsure=unsure)
            await _in_any_case(clearing, wait=not isinstance(error, StoreUnavailable))
        raise
    finally:
        state.image_numbers.received_bytes += intake.size_bytes


_CONFLICT: Final = refusals.already_uploaded().code


def _sink(this: Upload) -> Sink:
    declared = this.declared
    file = FileSink(
        this.state.spool, this.image_id, this.upload_id, this.limit, declared.content_type
    )
    return file if declared.boundary is None else FormSink(declared.boundary, file)


async def _claim(this: Upload) -> None:
    state = this.state
    outcome = await state.images.claim(this.image_id, this.upload_id, HOLD_MS)
    if outcome.answer is ImageAnswer.MISSING:
        raise no_such_image()
    if outcome.answer is not ImageAnswer.OK:
        raise refusals.already_uploaded()
    if state.pressure.refusing:
        raise state.pressure.problem()


async def _receive(this: Upload, intake: Intake) -> Received:
    loop = asyncio.get_running_loop()
    held = loop.time()
    try:
        async for chunk in this.request.stream():
            if chunk:
                await intake.take(chunk)
            if loop.time() - held >= HOLD_EVERY_S:
                await _hold(this)
                held = loop.time()
        return await intake.finish()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The connection closed within the body.") from None
    except OSError as error:
        log.error("the spool %s takes no upload: %s", this.state.spool.directory, error)
        raise Problem(
            503,
            "spool_unavailable",
            "The gateway cannot keep uploads at the moment; its log says why. Try again later.",
            headers=retry_headers(10.0),
        ) from None


async def _hold(this: Upload) -> None:
    outcome = await this.state.images.hold(this.image_id, this.upload_id, HOLD_MS)
    if outcome.answer is not ImageAnswer.OK:
        raise refusals.upload_lost()


async def _submit(this: Upload, received: Received) -> str:
    request, state = this.request, this.state
    uploaded = Uploaded(
        this.image_id,
        this.upload_id,
        # The image's tenant's, whoever uploads it.
        new_home_job_id(state.lines.partitions, this.record.tail or caller_of(request).tail),
        received.content_type,
        received.size_bytes,
        received.sha256,
    )
    admission = refusals.admission_of(request)
    outcome = await refusals.admitted(request, lambda: state.images.submit(uploaded, admission))
    job_id = str(outcome.facts.get(ImageFact.JOB_ID.value, "")) or uploaded.job_id
    logs.job_id.set(job_id)
    return job_id


async def _clear_up(this: Upload, intake: Intake, *, unsure: bool) -> None:
    """Leave nothing of an upload that came to nothing, and let others try."""
    try:
        if not unsure:
            await intake.discard()
        released = await this.state.images.release(this.image_id, this.upload_id)
        if unsure and released.answer is ImageAnswer.OK:
            await intake.discard()  # so there is no job
    except (SluiceError, OSError) as error:
        log.warning("what is left of an upload goes by itself: %s", error)


async def _in_any_case(clearing: Coroutine[Any, Any, None], *, wait: bool) -> None:
    """Also where the request is canceled; whoever waits in vain for Redis is answered first."""
    task = asyncio.ensure_future(clearing)
    _clearing.add(task)
    task.add_done_callback(_clearing.discard)
    if wait:
        await asyncio.shield(task)
