"""OpenAPI descriptions of the image routes."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Len
from fastapi import Depends, Header
from pydantic import BaseModel, Field, TypeAdapter

from sluice.common.contracts.images import CONTENT_TYPE
from sluice.gateway.features.images.lookup import ImageIdPath
from sluice.gateway.features.images.models import EXAMPLE_ID, EXAMPLE_REQUEST, CreateImageRequest
from sluice.gateway.features.images.upload.sink import FORM, UPLOAD_TYPES
from sluice.gateway.features.images.upload.tokens import HEADER
from sluice.gateway.http.headers import text_schema
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import RawJsonBody, declare, model_reference
from sluice.gateway.jobs.openapi import event_stream

_GONE = "The image does not exist or has expired."
_AWAY = "Redis does not answer."
_NO_TOOL = "The key is not allowed to run `tool` jobs."
_BINARY = TypeAdapter(bytes).json_schema()
_IDS = Annotated[list[Annotated[str, Field(min_length=1, pattern="^[^,]+$")]], Len(1, 100)]


#: Validated after the check whether the key is allowed to process images.
CreateBody = Annotated[
    Any, Depends(RawJsonBody(CreateImageRequest, EXAMPLE_REQUEST, required=False))
]


class UploadForm(BaseModel):
    """A form with an image."""

    file: bytes


CREATE: dict[str, Any] = {
    "responses": problem_responses(
        _400="The body is not JSON or nested too deeply, or the Idempotency-Key is invalid.",
        _403=_NO_TOOL,
        _404="The image was deleted at the same time.",
        _422="The body does not match the schema, or the Idempotency-Key was used with "
        "another request.",
        _503=_AWAY,
    )
}
LIST: dict[str, Any] = {"responses": problem_responses(_422="Invalid query parameter.", _503=_AWAY)}
READ: dict[str, Any] = {
    "responses": {
        304: {"description": "Not changed since the version in If-None-Match."},
        **problem_responses(_404=_GONE, _503=_AWAY),
    }
}
UPLOAD: dict[str, Any] = {
    "responses": problem_responses(
        _400="The upload is empty or incomplete, or the form is malformed or has no file.",
        _401="The API key (or the upload token, if tokens are enabled) is missing or not valid.",
        _403=_NO_TOOL + " Or the upload token is for another image.",
        _404=_GONE,
        _408="The upload took too long; see IMAGE_UPLOAD_TIMEOUT_S.",
        _409="The image has been uploaded, or is being uploaded. The body was not read; with "
        "`Expect: 100-continue` it is not sent.",
        _413="The upload is too long; see IMAGE_UPLOAD_HARD_MAX and the image's `max_bytes`.",
        _415="The Content-Type is not that of an image, or of a format that no worker supports.",
        _429="The queue is full, or the key has exceeded its rate or quota; see Retry-After. The "
        "upload can be repeated.",
        _503="Redis or the spool failed, or the host is short of memory or too hot; see "
        "Retry-After.",
    ),
    "dependencies": [
        declare(
            image_id=ImageIdPath,
            upload_token=Annotated[
                str | None,
                Header(
                    alias=HEADER,
                    description="The upload token from the response that created the image, if "
                    "tokens are enabled.",
                ),
                text_schema(
                    f"up1~{EXAMPLE_ID}~1760000000~~2JmxGQfYDhmSbTwvYxFzV8DkvcJjyYsqu0bDUyL6G3Y"
                ),
            ],
        )
    ],
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                **{media_type: {"schema": _BINARY} for media_type in UPLOAD_TYPES},
                FORM: {"schema": model_reference(UploadForm)},
            },
        },
    },
}
CONTENT: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The processed image.",
            "content": {CONTENT_TYPE: {"schema": _BINARY}},
        },
        304: {"description": "Not changed since the version in If-None-Match."},
        307: {"description": "The image is at Location, for a few minutes."},
        **problem_responses(
            _404=_GONE + " Or its processing has failed.",
            _409="The image is not processed yet.",
            _410="The object store does not have it any more.",
            _503="Redis or the object store does not answer.",
        ),
    }
}
REOPEN: dict[str, Any] = {
    "responses": problem_responses(
        _403=_NO_TOOL,
        _404=_GONE,
        _409="The image has not failed, and its upload is not stalled.",
        _503=_AWAY,
    )
}
DELETE: dict[str, Any] = {
    "responses": problem_responses(
        _403=_NO_TOOL,
        _404="The id is not valid, or belongs to another tenant.",
        _503="Redis or the object store does not answer; repeat the request.",
    )
}
_EXAMPLE_EVENT = (
    "id: 1760000000000-encoding\nevent: processing\n"
    f'data: {{"image_id":"{EXAMPLE_ID}","stage":"encoding","progress":75,'
    '"updated_at":"2026-02-24T10:00:00Z"}\n\n'
)
WATCH: dict[str, Any] = event_stream(
    "`ready` or `failed`", _EXAMPLE_EVENT, event={}, image_id=ImageIdPath
)
WATCH_MANY: dict[str, Any] = event_stream(
    "all of them are `ready` or `failed`", _EXAMPLE_EVENT, event={}
)
#: FastAPI cannot declare a list that is separated by commas.
WATCH_MANY["openapi_extra"] = {
    "parameters": [
        {
            "name": "image_ids",
            "in": "query",
            "required": True,
            "description": "Up to 100 ids, separated by commas.",
            "schema": TypeAdapter(_IDS).json_schema(),
            "style": "form",
            "explode": False,
            "example": [EXAMPLE_ID],
        }
    ]
}
for _watched in (WATCH, WATCH_MANY):
    # Any text is accepted as Last-Event-ID; an unknown one is ignored.
    _watched["responses"].pop(400)
    _watched["responses"].update(problem_responses(_404="None of the images exists."))
WATCH_MANY["responses"].update(problem_responses(_422="No image ids, or too many."))
