"""`PUT` and `POST /v1/images/{image_id}/upload`: the bytes of an image."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.images import ImageStatus
from common.contracts.jobs import Task
from gateway.callers import caller_of
from gateway.images import paths
from gateway.images.lookup import check_task, find_image
from gateway.images.models import ImageUploaded
from gateway.images.numbers import UploadOutcome
from gateway.images.uploading import upload
from gateway.metrics import metrics_of
from gateway.openapi import direct_route
from gateway.openapi_images import UPLOAD
from gateway.problems import Problem, problem_of
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["images"])


@router.put(
    paths.UPLOAD,
    status_code=202,
    response_model=ImageUploaded,
    summary="Upload an image",
    **UPLOAD,
)
async def put_image(request: Request) -> Response:
    """Take the bytes, once, and have them processed."""
    return await _upload(request)


@router.post(
    paths.UPLOAD,
    status_code=202,
    response_model=ImageUploaded,
    summary="Upload an image, as forms do",
    **UPLOAD,
)
async def post_image(request: Request) -> Response:
    """The same as PUT."""
    return await _upload(request)


async def _upload(request: Request) -> Response:
    state = state_of(request)
    numbers = state.image_numbers
    try:
        check_task(caller_of(request))
        record = await find_image(request)
        job_id = await upload(request, record, state.spool_threads)
    except Problem as problem:
        numbers.refused(problem.code)
        raise
    except Exception as error:
        if problem_of(error) is not None:
            numbers.uploads[UploadOutcome.UNAVAILABLE] += 1
        raise
    numbers.uploads[UploadOutcome.ACCEPTED] += 1
    metrics_of(request).jobs.accepted(Task.TOOL.value, replayed=False)
    view = ImageUploaded(image_id=record.image_id, status=ImageStatus.PROCESSING, job_id=job_id)
    headers = {
        "Location": paths.place_of(record.image_id),
        "Link": f'<{paths.events_place(record.image_id)}>; rel="monitor"',
    }
    return Response(view.model_dump_json(), 202, headers, _JSON)
