"""Models and requests of the image API (`/v1/images`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.api.parsing import (
    Page,
    model_reader,
    page_reader,
    raw_field,
    read_job_id,
    read_nothing,
)
from sluice.transport.request import (
    Request,
    build_request,
    drop_none,
    new_idempotency_key,
    path_segment,
    query_string,
)

_IMAGES = "/v1/images"
OCTET_STREAM = "application/octet-stream"
ALREADY_UPLOADED = "already_uploaded"


@dataclass(frozen=True)
class Image:
    """An image. Values not known yet are None; `raw` holds all members."""

    image_id: str
    status: str
    stage: str = ""
    progress: int = 0
    created_at: str = ""
    updated_at: str = ""
    filename: str | None = None
    job_id: str | None = None
    content_type: str | None = None
    file_size: int | None = None
    processed_width: int | None = None
    processed_height: int | None = None
    error: str | None = None
    error_code: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = raw_field()

    @property
    def ended(self) -> bool:
        """True once the image is processed or has failed."""
        return self.status in ("processed", "failed")


@dataclass(frozen=True)
class ImageUpload:
    """The URL and token for uploading the bytes of an image."""

    image_id: str
    status: str
    upload_url: str
    upload_token: str | None = None
    expires_at: str = ""
    raw: Mapping[str, Any] = raw_field()


def image_path(image_id: str) -> str:
    return f"{_IMAGES}/{path_segment(image_id)}"


def create(
    *,
    content_type: str | None = None,
    filename: str | None = None,
    max_bytes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    detect: str | None = None,
    idempotency_key: str | None = None,
) -> Request[ImageUpload]:
    """Creates an image record; the bytes are uploaded separately."""
    options = {
        "content_type": content_type,
        "filename": filename,
        "max_bytes": max_bytes,
        "metadata": metadata,
        "detect": detect,
    }
    key = new_idempotency_key() if idempotency_key is None else idempotency_key
    reader = model_reader(ImageUpload)
    return build_request("POST", _IMAGES, reader, body=drop_none(options), key=key)


def upload(image_id: str, data: bytes, content_type: str, token: str | None) -> Request[str]:
    """Uploads the bytes of an image. The response is the id of the job that processes them."""
    headers = {"Content-Type": content_type}
    if token is not None:
        headers["X-Upload-Token"] = token
    return Request("PUT", f"{image_path(image_id)}/upload", read_job_id, data, headers)


def get(image_id: str) -> Request[Image]:
    return build_request("GET", image_path(image_id), model_reader(Image))


def list_images(limit: int | None, before: str | None) -> Request[Page[Image]]:
    """Lists images, newest first."""
    query = {"limit": limit, "before": before}
    return build_request("GET", _IMAGES, page_reader(Image), query=query)


def events_path(image_ids: Sequence[str]) -> str:
    if len(image_ids) == 1:
        return f"{image_path(image_ids[0])}/events"
    return f"{_IMAGES}/events" + query_string({"image_ids": ",".join(image_ids)})


def content(image_id: str) -> Request[bytes]:
    """Downloads the processed image, following a redirect to the object store."""
    request = build_request(
        "GET",
        f"{image_path(image_id)}/content",
        lambda response: response.body,
        headers={"Accept": "*/*"},
    )
    return replace(request, follow_redirects=True)


def retry(image_id: str) -> Request[ImageUpload]:
    """Opens a failed image for another upload."""
    path = f"{image_path(image_id)}/retry-upload"
    return build_request("POST", path, model_reader(ImageUpload), idempotent=True)


def delete(image_id: str) -> Request[None]:
    """Deletes an image. Repeating the request is safe."""
    return build_request("DELETE", image_path(image_id), read_nothing)
