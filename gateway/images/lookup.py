"""Finding the image that a request is about."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request

from common.contracts.images import ImageArgument
from common.images.records import ImageRecord
from gateway.callers import Caller, caller_of
from gateway.problems import Problem
from gateway.refusals import check_tool_jobs
from gateway.state import state_of

#: As they are drawn here.
IMAGE_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


async def find_image(request: Request) -> ImageRecord:
    """What is known of the image of the path, or a 404: also where it is another tenant's."""
    record = await state_of(request).image_reader.record(image_id_of(request))
    if record is None:
        raise no_such_image()
    return record


def image_id_of(request: Request) -> str:
    """The id in the path; what cannot be one, or is another tenant's, is refused before Redis is
    asked, and nothing tells the one from the other."""
    image_id: str = request.path_params[ImageArgument.IMAGE_ID.value]
    if not may_be_there(caller_of(request), image_id):
        raise no_such_image()
    return image_id


def may_be_there(caller: Caller, image_id: str) -> bool:
    """Whether there could be such an image, as far as this caller is concerned."""
    return IMAGE_ID.fullmatch(image_id) is not None and caller.may_see(image_id)


def no_such_image() -> Problem:
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
