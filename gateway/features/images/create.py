"""`POST /v1/images`: creates an image, idempotent by Idempotency-Key."""

from __future__ import annotations

import calendar
import hashlib
import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.images import STATUS_TTL_S, ImageFact, ImageKeys, ImageStatus
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import ImageAnswer, NewImage
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.features.images.lookup import check_task, image_not_found, may_exist
from sluice.gateway.features.images.models import CreateImageRequest, CreateImageResponse
from sluice.gateway.features.images.state import images_of
from sluice.gateway.features.images.upload.tokens import UploadClaims, UploadTokens
from sluice.gateway.http.body import parse_body
from sluice.gateway.http.headers import REPLAYED_HEADERS, checked_idempotency_key
from sluice.gateway.http.paths import image_events_url, image_upload_url, image_url
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs.ids import new_job_id
from sluice.gateway.state import state_of

_JSON: Final = "application/json"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


async def create(request: Request, body: Any, key: str | None) -> Response:
    """Create an image. `key`: the value of Idempotency-Key."""
    settings, images, caller = state_of(request).settings, images_of(request), caller_of(request)
    check_task(caller)
    wanted = parse_body(CreateImageRequest, body)
    new = _new(settings, images.store.keys, caller, wanted, checked_idempotency_key(key))
    outcome = await images.store.create(new)
    if outcome.answer is ImageAnswer.REUSED:
        raise Problem(
            422,
            "idempotency_key_reused",
            "This Idempotency-Key was used with a different request. Use a new key.",
        )
    image_id = str(outcome.facts.get(ImageFact.IMAGE_ID, new.image_id))
    # Another request with the same key may have created it; both get the same response.
    record = await images.reader.record(image_id)
    if record is None or not may_exist(caller, image_id):
        raise image_not_found()
    headers = {
        "Location": image_url(image_id),
        "Link": f'<{image_events_url(image_id)}>; rel="monitor"',
    }
    if outcome.answer is ImageAnswer.ALREADY:
        headers.update(REPLAYED_HEADERS)
    view = _view(settings, images.upload_tokens, caller, record)
    return Response(view.model_dump_json(exclude_none=True), 201, headers, _JSON)


def _new(
    settings: GatewaySettings,
    keys: ImageKeys,
    caller: Caller,
    wanted: CreateImageRequest,
    key: str | None,
) -> NewImage:
    fingerprint = once_key = ""
    if key is not None:
        # Without defaults: options added by a later version do not change fingerprints.
        whole = codec.dumps_canonical(wanted.model_dump(mode="json", exclude_defaults=True))
        fingerprint = hashlib.sha256(whole).hexdigest()
        once_key = keys.idempotency(key, caller.tenant)
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
        idempotency_key=once_key,
        fingerprint=fingerprint,
        idempotency_ttl_s=settings.idempotency_ttl_s,
    )


def _view(
    settings: GatewaySettings, tokens: UploadTokens | None, caller: Caller, record: ImageRecord
) -> CreateImageResponse:
    """The response, rendered from the record, so that a replay gets the same."""
    token = None
    seconds = STATUS_TTL_S
    if tokens is not None:
        seconds = settings.image_upload_token_ttl_s
    ends_s = _seconds(record.created_at) + seconds
    if tokens is not None:
        token = tokens.issue(UploadClaims(record.image_id, ends_s, caller.key_id))
    return CreateImageResponse(
        image_id=record.image_id,
        status=ImageStatus.QUEUED,
        upload_url=image_upload_url(record.image_id),
        upload_token=token,
        expires_at=time.strftime(_TIME, time.gmtime(ends_s)),
    )


def _seconds(moment: str) -> int:
    """Unix seconds of a time as the scripts write it."""
    return calendar.timegm(time.strptime(moment, _TIME))
