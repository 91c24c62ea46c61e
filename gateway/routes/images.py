"""`/v1/images`: make an image, read it, list them, open it again, delete it."""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.access import TrailAction
from common.contracts.images import ImageStatus, Stage
from common.images.types import ImageAnswer
from gateway.callers import caller_of
from gateway.images import creating, deleting, paths, rendering
from gateway.images.lookup import check_task, find_image, image_id_of, no_such_image
from gateway.images.models import ImageCreated, ImagePage, ImageReopened, ImageView
from gateway.json_body import read_json_if_any
from gateway.openapi import direct_route
from gateway.openapi_images import CREATE, DELETE, LIST, READ, REOPEN
from gateway.problems import Problem
from gateway.state import state_of

_JSON = "application/json"
#: Most images of a page.
MOST_PER_PAGE = 100

router = APIRouter(route_class=direct_route(APIRoute), tags=["images"])
#: Routes whose parameters FastAPI reads.
_plain = APIRouter(tags=["images"])


@router.post(
    paths.IMAGES, status_code=201, response_model=ImageCreated, summary="Make an image", **CREATE
)
async def create_image(request: Request) -> Response:
    """Say where the bytes of an image may be sent."""
    return await creating.create(request, await read_json_if_any(request))


@_plain.get(paths.IMAGES, response_model=ImagePage, summary="List images", **LIST)
async def list_images(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="Most in the answer.")] = 50,
    before: Annotated[
        str,
        Query(
            pattern="^([0-9]{1,15}-[0-9a-f-]{36})?$",
            description="Only older ones: the last page's `next`.",
        ),
    ] = "",
) -> Response:
    """Images, the newest first; those that have expired are left out."""
    state, caller = state_of(request), caller_of(request)
    page = await state.image_reader.list("" if caller.sees_all else caller.tenant, before, limit)
    shown = await state.image_reader.progress([record.image_id for record in page.records])
    items = [rendering.image_view(record, at) for record, at in zip(page.records, shown)]
    found = ImagePage(items=items, next=page.next or None)
    body = codec.dumps(found.model_dump(mode="json", exclude_none=True))
    return Response(body, 200, media_type=_JSON)


@router.get(paths.IMAGE, response_model=ImageView, summary="Read an image", **READ)
async def read_image(request: Request) -> Response:
    """What is known of an image, and how far it is."""
    state = state_of(request)
    image_id = image_id_of(request)
    # In this order: what ends in between has ended, whatever was shown before.
    [progress] = await state.image_reader.progress([image_id])
    record = await find_image(request)
    body = rendering.body_of(rendering.image_view(record, progress))
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = request.headers.get("if-none-match", "").split(",")
    if any(version.strip().removeprefix("W/") in (etag, "*") for version in known):
        return Response(None, 304, headers)
    return Response(body, 200, headers, _JSON)


@router.post(
    paths.RETRY, response_model=ImageReopened, summary="Let an image be uploaded again", **REOPEN
)
async def reopen_image(request: Request) -> Response:
    """Only where it has failed, or its upload fell silent."""
    state, image_id = state_of(request), image_id_of(request)
    check_task(caller_of(request))
    outcome = await state.images.reopen(image_id)
    if outcome.answer is ImageAnswer.MISSING:
        raise no_such_image()
    if outcome.answer is ImageAnswer.CONFLICT:
        raise Problem(
            409,
            "not_failed",
            "Only an image that has failed, or whose upload fell silent, can be uploaded again.",
        )
    await deleting.clear_upload(state, image_id, outcome.facts)
    view = ImageReopened(
        image_id=image_id,
        status=ImageStatus.QUEUED,
        stage=Stage.QUEUED,
        upload_url=paths.upload_place(image_id),
    )
    return Response(view.model_dump_json(), 200, {"Location": paths.place_of(image_id)}, _JSON)


@router.delete(
    paths.IMAGE, status_code=204, response_class=Response, summary="Delete an image", **DELETE
)
async def delete_image(request: Request) -> Response:
    """Its object, its upload, its job and all that is known of it; also a second time."""
    state, caller, image_id = state_of(request), caller_of(request), image_id_of(request)
    check_task(caller)
    if caller.key_id and not caller.owns(image_id):
        await state.access.write_down(request, TrailAction.IMAGE_DELETE, image_id)
    await deleting.delete(request, image_id)
    return Response(None, 204)


router.include_router(_plain)
