"""Finds the image of a request, and maps outcomes of the images' scripts to problems."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Path
from starlette.requests import Request

from sluice.common.contracts.images import ImageArgument
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import ImageAnswer, ImageOutcome
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.features.images.models import EXAMPLE_ID
from sluice.gateway.features.images.state import images_of
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs import admission
from sluice.gateway.jobs.refusals import check_tool_jobs

#: A version 4 UUID.
IMAGE_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


ImageIdPath = Annotated[
    str, Path(description="The id from the response that created the image.", examples=[EXAMPLE_ID])
]


async def find_image(request: Request, image_id: str) -> ImageRecord:
    """The record of an image, or a 404."""
    record = await images_of(request).reader.record(image_id)
    if record is None:
        raise image_not_found()
    return record


def image_id_of(request: Request) -> str:
    """The id in the path; raises 404 for an invalid id or another tenant's, without asking
    Redis."""
    image_id: str = request.path_params[ImageArgument.IMAGE_ID]
    if not may_exist(caller_of(request), image_id):
        raise image_not_found()
    return image_id


async def _image_id_param(request: Request, image_id: ImageIdPath) -> str:
    return image_id_of(request)


#: A parameter of a route: the id in the path, checked.
CheckedImageId = Annotated[str, Depends(_image_id_param)]


def may_exist(caller: Caller, image_id: str) -> bool:
    """True if the id is valid and the caller may see it."""
    return IMAGE_ID.fullmatch(image_id) is not None and caller.may_see(image_id)


def image_not_found() -> Problem:
    """The image never existed, was deleted or has expired."""
    return Problem(
        404,
        "image_not_found",
        "There is no such image. It may have expired: an image without an upload is kept for an "
        "hour.",
    )


def check_task(caller: Caller) -> None:
    """Raise a problem if the key is not allowed `tool` jobs, which process images."""
    check_tool_jobs(caller, "Images are processed")


async def call_with_admission(
    request: Request, call: Callable[[], Awaitable[ImageOutcome]]
) -> ImageOutcome:
    """The outcome of a call that starts a job; raises the problem of a refusal."""
    outcome = await admission.call_with_admission(request, call)
    if outcome.answer is ImageAnswer.MISSING:
        raise image_not_found()
    if outcome.answer is ImageAnswer.LOST:
        raise upload_lost()
    return outcome


def already_uploaded() -> Problem:
    return Problem(
        409,
        "already_uploaded",
        "This image has been uploaded, or is being uploaded. This upload was ignored. An image "
        "that has failed can be uploaded again after POST …/retry-upload.",
    )


def upload_lost() -> Problem:
    """The upload took too long and lost its claim."""
    return Problem(
        409,
        "upload_lost",
        "This upload has lost its claim: another upload has replaced it, or the image was reopened "
        "meanwhile.",
    )
