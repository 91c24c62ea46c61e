"""`/v1/images`: create, upload, read, watch, list and delete images."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.access import AuditAction
from sluice.common.contracts.images import ImageArgument, ImageStatus, Stage
from sluice.common.contracts.jobs import Task
from sluice.common.features.images.scripts import IMAGE_SCRIPT
from sluice.common.features.images.storage.factory import create_storage
from sluice.common.features.images.types import ImageAnswer
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.events.response import (
    SEND_TIMEOUT_S,
    EventStreamResponse,
    hello_frame,
    negotiate_media_type,
    relay,
)
from sluice.gateway.feature import Feature, FeatureContext, background_tasks
from sluice.gateway.features.images import content, create, delete, models
from sluice.gateway.features.images.events import ImageState, gone_state
from sluice.gateway.features.images.hub import event_id_of
from sluice.gateway.features.images.lookup import (
    CheckedImageId,
    check_task,
    find_image,
    image_id_of,
    image_not_found,
    may_exist,
)
from sluice.gateway.features.images.metrics import UploadOutcome
from sluice.gateway.features.images.models import (
    CreateImageResponse,
    ImagePage,
    ImageView,
    RetryUploadResponse,
    UploadImageResponse,
)
from sluice.gateway.features.images.openapi import (
    CREATE,
    DELETE,
    LIST,
    READ,
    REOPEN,
    UPLOAD,
    WATCH,
    WATCH_MANY,
    CreateBody,
)
from sluice.gateway.features.images.result_consumer import BLOCK_S, ResultConsumer
from sluice.gateway.features.images.state import ImageServices, images_of
from sluice.gateway.features.images.upload.upload import upload
from sluice.gateway.http import paths
from sluice.gateway.http.headers import IdempotencyKey, IfNoneMatch, json_with_etag
from sluice.gateway.http.problems import FieldProblem, Problem, problem_of
from sluice.gateway.http.routing import DirectRoute, JsonRoute
from sluice.gateway.jobs.refusals import check_streams
from sluice.gateway.observability.metrics.http import job_metrics_of
from sluice.gateway.state import state_of

_JSON = "application/json"
#: Most images on a page.
MOST_PER_PAGE = 100

router = APIRouter(route_class=JsonRoute, tags=["images"])
#: Event streams and uploads: they read the request themselves.
_streams = APIRouter(route_class=DirectRoute, tags=["images"])


#: Most images that one stream watches.
MOST_IMAGES: Final = 100
#: Query parameter with the ids.
IMAGE_IDS: Final = "image_ids"


@_streams.get(paths.IMAGES_EVENTS, summary="Watch several images", **WATCH_MANY)
async def watch_images(request: Request) -> Response:
    """Streams the state of each image whenever it changes, until all have ended."""
    media_type = negotiate_media_type(request)
    caller, ids = caller_of(request), _ids(request)
    seen = [image_id for image_id in ids if may_exist(caller, image_id)]
    known = {image.image_id: image for image in await images_of(request).hub.current(seen)}
    current = [known.get(image_id) or gone_state(image_id) for image_id in ids]
    return _stream(request, media_type, current, {IMAGE_IDS: ids})


@_streams.get(paths.IMAGE_EVENTS, summary="Watch an image", **WATCH)
async def watch_image(request: Request) -> Response:
    """Streams the state of the image whenever it changes, until it has ended."""
    media_type = negotiate_media_type(request)
    image_id = image_id_of(request)
    current = await images_of(request).hub.current([image_id])
    return _stream(request, media_type, current, {ImageArgument.IMAGE_ID: image_id})


def _stream(
    request: Request, media_type: str, current: Sequence[ImageState], facts: dict[str, Any]
) -> Response:
    state = state_of(request)
    if all(image.is_gone for image in current):
        raise image_not_found()
    known = request.headers.get("last-event-id") or request.query_params.get("last_event_id", "")
    if known:
        if known == event_id_of(current) and all(image.ended for image in current):
            return Response(None, 204)
        state.hub.metrics.resumes += 1
    check_streams(request)
    opening = partial(images_of(request).hub.subscribe, current, known)
    frames = relay(
        state, caller_of(request), opening, hello_frame(state, facts), media_type, numbered=True
    )
    return EventStreamResponse(state.hub, frames, media_type, SEND_TIMEOUT_S)


def _ids(request: Request) -> list[str]:
    """The ids in the query without duplicates, in order."""
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


@router.post(
    paths.IMAGES,
    status_code=201,
    response_model=CreateImageResponse,
    summary="Create an image",
    **CREATE,
)
async def create_image(
    request: Request, body: CreateBody, idempotency_key: IdempotencyKey = None
) -> Response:
    """Creates an image and returns the URL for its upload."""
    return await create.create(request, body, idempotency_key)


@router.get(paths.IMAGES, response_model=ImagePage, summary="List images", **LIST)
async def list_images(
    request: Request,
    limit: Annotated[
        int, Query(ge=1, le=MOST_PER_PAGE, description="Maximum number of images.")
    ] = 50,
    before: Annotated[
        str,
        Query(
            pattern="^([0-9]{1,15}-[0-9a-f-]{36})?$",
            description="Only older entries: `next` of the previous page.",
        ),
    ] = "",
) -> Response:
    """Returns images, newest first, without expired ones."""
    reader, caller = images_of(request).reader, caller_of(request)
    page = await reader.list("" if caller.sees_all else caller.tenant, before, limit)
    shown = await reader.progress([record.image_id for record in page.records])
    items = [models.image_view(record, at) for record, at in zip(page.records, shown)]
    found = ImagePage(items=items, next=page.next or None)
    body = codec.dumps(found.model_dump(mode="json", exclude_none=True))
    return Response(body, 200, media_type=_JSON)


@router.get(paths.IMAGE, response_model=ImageView, summary="Read an image", **READ)
async def read_image(
    request: Request, image_id: CheckedImageId, if_none_match: IfNoneMatch = None
) -> Response:
    """Returns the image with its progress."""
    # In this order: if the image ends in between, the record has the result.
    [progress] = await images_of(request).reader.progress([image_id])
    record = await find_image(request, image_id)
    return json_with_etag(models.body_of(models.image_view(record, progress)), if_none_match)


@router.post(
    paths.IMAGE_RETRY_UPLOAD,
    response_model=RetryUploadResponse,
    summary="Reopen an image for upload",
    **REOPEN,
)
async def reopen_image(request: Request, image_id: CheckedImageId) -> Response:
    """Allows another upload of an image that has failed, or whose upload has stalled."""
    check_task(caller_of(request))
    outcome = await images_of(request).store.reopen(image_id)
    if outcome.answer is ImageAnswer.MISSING:
        raise image_not_found()
    if outcome.answer is ImageAnswer.CONFLICT:
        raise Problem(
            409,
            "not_failed",
            "Only an image that has failed, or whose upload has stalled, can be uploaded again.",
        )
    await delete.clear_upload(request, image_id, outcome.facts)
    view = RetryUploadResponse(
        image_id=image_id,
        status=ImageStatus.QUEUED,
        stage=Stage.QUEUED,
        upload_url=paths.image_upload_url(image_id),
    )
    return Response(view.model_dump_json(), 200, {"Location": paths.image_url(image_id)}, _JSON)


@router.delete(
    paths.IMAGE, status_code=204, response_class=Response, summary="Delete an image", **DELETE
)
async def delete_image(request: Request, image_id: CheckedImageId) -> Response:
    """Deletes the image, its stored object, its upload and its job. Idempotent."""
    state, caller = state_of(request), caller_of(request)
    check_task(caller)
    if not caller.owns(image_id):
        await state.access.record(request, AuditAction.IMAGE_DELETE, image_id)
    await delete.delete(request, image_id)
    return Response(None, 204)


@_streams.put(
    paths.IMAGE_UPLOAD,
    status_code=202,
    response_model=UploadImageResponse,
    summary="Upload an image",
    **UPLOAD,
)
async def put_image(request: Request) -> Response:
    """Accepts the image file once, and starts to process it."""
    return await _upload(request)


@_streams.post(
    paths.IMAGE_UPLOAD,
    status_code=202,
    response_model=UploadImageResponse,
    summary="Upload an image with a form",
    **UPLOAD,
)
async def post_image(request: Request) -> Response:
    """The same as PUT."""
    return await _upload(request)


async def _upload(request: Request) -> Response:
    numbers = images_of(request).metrics
    try:
        check_task(caller_of(request))
        record = await find_image(request, image_id_of(request))
        job_id = await upload(request, record)
    except Problem as problem:
        numbers.record_refusal(problem.code)
        raise
    except Exception as error:
        if problem_of(error) is not None:
            numbers.uploads[UploadOutcome.UNAVAILABLE] += 1
        raise
    numbers.uploads[UploadOutcome.ACCEPTED] += 1
    job_metrics_of(request).record_accepted(Task.TOOL.value, replayed=False)
    view = UploadImageResponse(
        image_id=record.image_id, status=ImageStatus.PROCESSING, job_id=job_id
    )
    headers = {
        "Location": paths.image_url(record.image_id),
        "Link": f'<{paths.image_events_url(record.image_id)}>; rel="monitor"',
    }
    return Response(view.model_dump_json(), 202, headers, _JSON)


def _build(context: FeatureContext) -> ImageServices:
    services = ImageServices.build(context.state, context.connections.script_batcher(IMAGE_SCRIPT))
    context.stack.push_async_callback(services.close)
    context.state.streams.add(services.hub, services.hub.on_hint)
    services.hub.start()
    return services


@asynccontextmanager
async def _consume_results(context: FeatureContext, services: ImageServices) -> AsyncIterator[None]:
    """Persist the results of pipelines, unless IMAGE_CONSUMER is off."""
    if not context.settings.image_consumer:
        yield
        return
    connection = context.connections.connect(block_s=BLOCK_S)
    consumer = ResultConsumer(connection, services.store, services.metrics)
    async with background_tasks(consumer.run()):
        yield


FEATURE: Final = Feature(
    # `/v1/images/events` before `/v1/images/{image_id}`, which would match it too.
    [_streams, router, content.router],
    "images",
    build=_build,
    background=_consume_results,
    check_settings=create_storage,  # reports a missing package or directory now
)
