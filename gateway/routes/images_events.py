"""`GET /v1/images/{image_id}/events` and `GET /v1/images/events`: where images are, live."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.images import ImageArgument
from gateway.callers import caller_of
from gateway.images import paths
from gateway.images.events import Told, gone
from gateway.images.lookup import image_id_of, may_be_there, no_such_image
from gateway.images.stage_watch import event_id_of
from gateway.openapi import direct_route
from gateway.openapi_images import WATCH, WATCH_MANY
from gateway.problems import FieldProblem, Problem
from gateway.refusals import check_streams
from gateway.state import state_of
from gateway.streams import SEND_TIMEOUT_S, EventStream, hello, media_type_of, relayed

#: Images that one stream tells of.
MOST_IMAGES: Final = 100
#: The query parameter that names them.
IMAGE_IDS: Final = "image_ids"

router = APIRouter(route_class=direct_route(APIRoute), tags=["images"])


@router.get(paths.MANY_EVENTS, summary="Watch several images", **WATCH_MANY)
async def watch_images(request: Request) -> Response:
    """Where each of them is, whenever that changes, until all have ended."""
    media_type = media_type_of(request)
    caller, ids = caller_of(request), _ids(request)
    seen = [image_id for image_id in ids if may_be_there(caller, image_id)]
    known = {told.image_id: told for told in await state_of(request).stages.current(seen)}
    current = [known.get(image_id) or gone(image_id) for image_id in ids]
    return _stream(request, media_type, current, {IMAGE_IDS: ids})


@router.get(paths.EVENTS, summary="Watch an image", **WATCH)
async def watch_image(request: Request) -> Response:
    """Where it is, whenever that changes, until it has ended."""
    media_type = media_type_of(request)
    image_id = image_id_of(request)
    current = await state_of(request).stages.current([image_id])
    return _stream(request, media_type, current, {ImageArgument.IMAGE_ID.value: image_id})


def _stream(
    request: Request, media_type: str, current: Sequence[Told], facts: dict[str, Any]
) -> Response:
    state = state_of(request)
    if all(told.is_gone for told in current):
        raise no_such_image()
    known = request.headers.get("last-event-id") or request.query_params.get("last_event_id", "")
    if known:
        if known == event_id_of(current) and all(told.ended for told in current):
            return Response(None, 204)
        state.hub.numbers.resumes += 1
    check_streams(state)
    opening = partial(state.stages.watch, current, known)
    frames = relayed(
        state, caller_of(request), opening, hello(state, facts), media_type, numbered=True
    )
    return EventStream(state.hub, frames, media_type, SEND_TIMEOUT_S)


def _ids(request: Request) -> list[str]:
    """The images of the query, each once, in their order."""
    given = request.query_params.getlist(IMAGE_IDS)
    ids = dict.fromkeys(part for value in given for part in value.split(",") if part)
    if not 1 <= len(ids) <= MOST_IMAGES:
        fault = FieldProblem(
            pointer=f"/{IMAGE_IDS}", detail=f"1 to {MOST_IMAGES} ids, separated by commas"
        )
        raise Problem(
            422,
            "invalid_request",
            f"Name 1 to {MOST_IMAGES} images: ?{IMAGE_IDS}=…,…",
            [fault],
        )
    return list(ids)
