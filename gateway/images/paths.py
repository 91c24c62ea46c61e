"""Which paths belong to the image API, and which of them take long bodies."""

from __future__ import annotations

from typing import Final

IMAGES: Final = "/v1/images"
MANY_EVENTS: Final = IMAGES + "/events"
IMAGE: Final = IMAGES + "/{image_id}"
UPLOAD: Final = IMAGE + "/upload"
EVENTS: Final = IMAGE + "/events"
CONTENT: Final = IMAGE + "/content"
RETRY: Final = IMAGE + "/retry-upload"
#: Below which all images lie, and how the path of an upload ends.
BELOW: Final = IMAGES + "/"
_UPLOAD_END: Final = UPLOAD.rpartition("}")[2]
UPLOAD_METHODS: Final = ("PUT", "POST")


def is_upload(method: str, path: str) -> bool:
    """Whether a request brings the bytes of an image."""
    return path.startswith(BELOW) and path.endswith(_UPLOAD_END) and method in UPLOAD_METHODS


def image_id_in(path: str) -> str:
    """The part of a path below the images that names one."""
    return path[len(BELOW) :].partition("/")[0]


def place_of(image_id: str) -> str:
    """Where an image is read."""
    return BELOW + image_id


def upload_place(image_id: str) -> str:
    """Where its bytes are taken."""
    return UPLOAD.replace("{image_id}", image_id)


def events_place(image_id: str) -> str:
    """Where it is watched."""
    return EVENTS.replace("{image_id}", image_id)


def content_place(image_id: str) -> str:
    """Where the processed image is fetched."""
    return CONTENT.replace("{image_id}", image_id)
