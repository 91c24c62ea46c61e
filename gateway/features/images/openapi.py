"""What OpenAPI says of the image API."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Len
from fastapi import Depends, Header
from pydantic import BaseModel, Field, TypeAdapter

from common.contracts.images import CONTENT_TYPE
from gateway.features.images.lookup import ImageIdPath
from gateway.features.images.models import EXAMPLE_ID, EXAMPLE_REQUEST, CreateImageRequest
from gateway.features.images.upload.sink import FORM, UPLOAD_TYPES
from gateway.features.images.upload.tokens import HEADER
from gateway.http.headers import text_schema
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import RawJsonBody, declare
from gateway.jobs.openapi import event_stream

_GONE = "No such image, or no longer."
_AWAY = "Redis does not answer."
_NO_TOOL = "The key is not allowed to run `tool` jobs."
_BINARY = TypeAdapter(bytes).json_schema()
_IDS = Annotated[list[Annotated[str, Field(min_length=1, pattern="^[^,]+$")]], Len(1, 100)]


#: Validated after the check whether the key may have images processed.
CreateBody = Annotated[
    Any, Depends(RawJsonBody(CreateImageRequest, EXAMPLE_REQUEST, required=False))
]


class UploadForm(BaseModel):
    """A form with an image in it."""

    file: bytes


CREATE: dict[str, Any] = {
    "responses": problem_responses(
        _400="The body is not JSON or nested too deeply, or the Idempotency-Key is invalid.",
        _403=_NO_TOOL,
        _404="The image was deleted in the same moment.",
        _413="The body is too long.",
        _415="The Content-Type of the body is not JSON.",
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
        _400="The upload is empty or broken off, or the form cannot be read or has no file.",
        _401="An API key is needed or, where uploads are signed for, the upload token; or it is "
        "not valid.",
        _403=_NO_TOOL + " Or the upload token is another image's.",
        _404=_GONE,
        _408="The upload took too long; see IMAGE_UPLOAD_TIMEOUT_S.",
        _409="It was uploaded before, or is just now: nothing of the body was read, and with "
        "`Expect: 100-continue` none of it was sent.",
        _413="The upload is too long; see IMAGE_UPLOAD_HARD_MAX and the image's own `max_bytes`.",
        _415="The upload is not declared as an image.",
        _429="The queue is full, or the key has used up its rate or its quota; Retry-After says "
        "when to come back. The same upload can be sent again.",
        _503="Redis or the spool does not take it, or the host is short of memory or too hot; "
        "Retry-After says when to come back.",
    ),
    "dependencies": [
        declare(
            image_id=ImageIdPath,
            upload_token=Annotated[
                str | None,
                Header(
                    alias=HEADER,
                    description="Where uploads are signed for: what its creation answered.",
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
                FORM: {
                    "schema": UploadForm.model_json_schema(),
                },
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
        307: {"description": "It can be fetched there, for some minutes."},
        **problem_responses(
            _404=_GONE + " Or it has failed.",
            _409="It is not processed yet.",
            _410="The store does not have it any more.",
            _503="Redis or the store does not answer.",
        ),
    }
}
REOPEN: dict[str, Any] = {
    "responses": problem_responses(
        _403=_NO_TOOL, _404=_GONE, _409="It has neither failed nor fallen silent.", _503=_AWAY
    )
}
DELETE: dict[str, Any] = {
    "responses": problem_responses(
        _403=_NO_TOOL,
        _404="No image can have this id, or it is another tenant's.",
        _503="Redis or the store does not answer; the same request does the rest.",
    )
}
_EXAMPLE_EVENT = (
    "id: 1760000000000-encoding\nevent: processing\n"
    f'data: {{"image_id":"{EXAMPLE_ID}","stage":"encoding","progress":75,'
    '"updated_at":"2026-02-24T10:00:00Z"}\n\n'
)
WATCH: dict[str, Any] = event_stream("`ready` or `failed`", _EXAMPLE_EVENT, image_id=ImageIdPath)
WATCH_MANY: dict[str, Any] = event_stream("all of them are `ready` or `failed`", _EXAMPLE_EVENT)
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
    # What an id says is this API's own: any text is taken, and one that is unknown says nothing.
    _watched["responses"].pop(400)
    _watched["responses"].update(problem_responses(_404="None of them is there, or no longer."))
WATCH_MANY["responses"].update(problem_responses(_422="No image is named, or too many are."))
