"""A request's way to an image: checked, made once, answered alike however often it comes."""

from __future__ import annotations

import calendar
import hashlib
import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.images import STATUS_TTL_S, ImageFact, ImageStatus
from common.images.records import ImageRecord
from common.images.types import ImageAnswer, NewImage
from gateway.callers import Caller, caller_of
from gateway.ids import new_job_id
from gateway.images.lookup import check_task, may_be_there, no_such_image
from gateway.images.models import CreateImageRequest, ImageCreated
from gateway.images.paths import events_place, place_of, upload_place
from gateway.images.tokens import Signed
from gateway.problems import Problem
from gateway.state import GatewayState, state_of
from gateway.submitting import idempotency_key
from gateway.workflow.asking import validated

_JSON: Final = "application/json"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


async def create(request: Request, body: Any) -> Response:
    """The answer to a request for an image."""
    state, caller = state_of(request), caller_of(request)
    check_task(caller)
    wanted = validated(CreateImageRequest, body)
    new = _new(state, caller, wanted, idempotency_key(request))
    outcome = await state.images.create(new)
    if outcome.answer is ImageAnswer.REUSED:
        raise Problem(
            422,
            "idempotency_key_reused",
            "This Idempotency-Key came with another request before. Use a new key.",
        )
    image_id = str(outcome.facts.get(ImageFact.IMAGE_ID.value, new.image_id))
    # Another request of the same key may have made it; both hear what it says.
    record = await state.image_reader.record(image_id)
    if record is None or not may_be_there(caller, image_id):
        raise no_such_image()
    headers = {
        "Location": place_of(image_id),
        "Link": f'<{events_place(image_id)}>; rel="monitor"',
    }
    if outcome.answer is ImageAnswer.ALREADY:
        headers["Idempotent-Replayed"] = "true"
    view = _view(state, caller, record)
    return Response(view.model_dump_json(exclude_none=True), 201, headers, _JSON)


def _new(
    state: GatewayState, caller: Caller, wanted: CreateImageRequest, key: str | None
) -> NewImage:
    settings = state.settings
    fingerprint = once_key = ""
    if key is not None:
        # Without what was left out: wishes that a later version adds change no fingerprint.
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_defaults=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
        once_key = state.images.keys.idempotency(key, caller.tenant)
    return NewImage(
        image_id=new_job_id(caller.tail),
        ttl_s=settings.image_record_ttl_s,
        filename=wanted.filename or "",
        declared_type=wanted.content_type or "",
        max_bytes=wanted.max_bytes or 0,
        metadata=codec.dumps(wanted.metadata),
        detect=wanted.detect,
        tenant=caller.tenant,
        tail=caller.tail,
        once_key=once_key,
        fingerprint=fingerprint,
        once_ttl_s=settings.idempotency_ttl_s,
    )


def _view(state: GatewayState, caller: Caller, record: ImageRecord) -> ImageCreated:
    """All of it comes of the record, so that a repetition is told the same."""
    tokens, token = state.upload_tokens, None
    seconds = STATUS_TTL_S
    if tokens is not None:
        seconds = state.settings.image_upload_token_ttl_s
    ends_s = _seconds(record.created_at) + seconds
    if tokens is not None:
        token = tokens.issue(Signed(record.image_id, ends_s, caller.key_id))
    return ImageCreated(
        image_id=record.image_id,
        status=ImageStatus.QUEUED,
        upload_url=upload_place(record.image_id),
        upload_token=token,
        expires_at=time.strftime(_TIME, time.gmtime(ends_s)),
    )


def _seconds(moment: str) -> int:
    """RFC 3339 as our scripts write it."""
    return calendar.timegm(time.strptime(moment, _TIME))
