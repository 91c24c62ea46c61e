"""Finds the image of a request, and maps outcomes of the images' scripts to problems."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Path
from starlette.requests import Request

from common.contracts.images import ImageArgument
from common.features.images.records import ImageRecord
from common.features.images.types import ImageAnswer, ImageOutcome
from gateway.auth.callers import Caller, caller_of
from gateway.features.images.models import EXAMPLE_ID
from gateway.features.images.state import images_of
from gateway.http.problems import Problem
from gateway.jobs import admission
from gateway.jobs.refusals import check_tool_jobs

#: As they are drawn here.
IMAGE_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


ImageIdPath = Annotated[
    str, Path(description="The id from the answer that made it.", examples=[EXAMPLE_ID])
]


async def find_image(request: Request, image_id: str) -> ImageRecord:
    """The record of an image, or a 404."""
    record = await images_of(request).reader.record(image_id)
    if record is None:
        raise image_not_found()
    return record


def image_id_of(request: Request) -> str:
    """The id in the path; what cannot be one, or is another tenant's, is refused before Redis is
    asked, and nothing tells the one from the other."""
    image_id: str = request.path_params[ImageArgument.IMAGE_ID]
    if not may_exist(caller_of(request), image_id):
        raise image_not_found()
    return image_id


async def _image_id_param(request: Request, image_id: ImageIdPath) -> str:
    return image_id_of(request)


#: A parameter of a route: the id in the path, checked.
CheckedImageId = Annotated[str, Depends(_image_id_param)]


def may_exist(caller: Caller, image_id: str) -> bool:
    """Whether there could be such an image, as far as this caller is concerned."""
    return IMAGE_ID.fullmatch(image_id) is not None and caller.may_see(image_id)


def image_not_found() -> Problem:
    """It never was, or is no more."""
    return Problem(
        404,
        "image_not_found",
        "There is no such image. It may have expired: one that nothing is uploaded to is kept for "
        "an hour.",
    )


def check_task(caller: Caller) -> None:
    """Raise where the caller's key may not have images processed: each is a `tool` job."""
    check_tool_jobs(caller, "Images are processed")


async def call_with_admission(
    request: Request, call: Callable[[], Awaitable[ImageOutcome]]
) -> ImageOutcome:
    """The outcome of a call that makes a core job; raises what forbids it just now."""
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
        "This image was uploaded before, or is just now. Nothing of this upload was taken. An "
        "image that has failed can be uploaded again after POST …/retry-upload.",
    )


def upload_lost() -> Problem:
    """The upload took too long, and another one has its place."""
    return Problem(
        409,
        "upload_lost",
        "This upload is not the one that counts any more: another one has taken its place, or the "
        "image was reopened meanwhile.",
    )
