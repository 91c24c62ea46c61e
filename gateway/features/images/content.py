"""`GET /v1/images/{image_id}/content`: the processed image, or a redirect to the object store."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sluice.common.contracts.images import CONTENT_TYPE, STORAGE_SUFFIX, ImageStatus
from sluice.common.features.images.records import ImageRecord, ImageResult
from sluice.common.features.images.storage.base import ObjectContent, StorageError
from sluice.gateway.features.images.delete import storage_unavailable
from sluice.gateway.features.images.lookup import CheckedImageId, find_image
from sluice.gateway.features.images.openapi import CONTENT
from sluice.gateway.features.images.state import images_of
from sluice.gateway.http import paths
from sluice.gateway.http.headers import IfNoneMatch, is_etag_listed, not_modified
from sluice.gateway.http.problems import Problem

#: Seconds a presigned URL of the object store is valid.
URL_TTL_S: Final = 300
#: A processed image does not change, but it may be deleted.
_CACHE: Final = "private, max-age=3600"
_UNSAFE: Final = re.compile(r'[^A-Za-z0-9 ._()+=@-]|"')
_MOST_STEM: Final = 120
#: Valid ETags; a third-party pipeline may have stored anything.
_ETAG: Final = re.compile(r"[\x21\x23-\x7e]{1,256}")


async def content(request: Request, record: ImageRecord, known: str | None) -> Response:
    """The response with the bytes of an image. `known`: the value of If-None-Match."""
    result = _result(record)
    tag = f'"{result.etag if _ETAG.fullmatch(result.etag) else result.sha256}"'
    headers = {
        "ETag": tag,
        "Cache-Control": _CACHE,
        "Content-Disposition": disposition(record),
    }
    if is_etag_listed(known, tag):
        return not_modified(headers)
    storage = images_of(request).storage
    try:
        url = await storage.url(result.storage_key, URL_TTL_S)
        if url is not None:
            return Response(None, 307, {"Location": url, "Cache-Control": "no-store"})
        found = await storage.read(result.storage_key)
    except StorageError as error:
        raise storage_unavailable(error) from None
    if found is None:
        raise Problem(410, "content_gone", "The object store does not have this image any more.")
    headers["Content-Length"] = str(found.size_bytes)
    media_type = result.content_type if result.content_type == CONTENT_TYPE else _OTHER
    return StreamingResponse(_chunks(found), 200, headers, media_type)


#: Media type of everything else: a browser must not execute what a third-party pipeline stored.
_OTHER: Final = "application/octet-stream"


def disposition(record: ImageRecord) -> str:
    """Content-Disposition with a sanitised form of the client's file name."""
    name = re.split(r"[/\\]", record.filename)[-1].rpartition(".")
    stem = (name[0] or name[2]).strip(". ")[:_MOST_STEM] or record.image_id
    plain = _UNSAFE.sub("_", stem) + STORAGE_SUFFIX
    header = f'inline; filename="{plain}"'
    if plain != stem + STORAGE_SUFFIX:
        header += f"; filename*=UTF-8''{quote(stem + STORAGE_SUFFIX, safe='')}"
    return header


async def _chunks(found: ObjectContent) -> AsyncIterator[bytes]:
    try:
        async for chunk in found.chunks:
            yield chunk
    finally:
        close = getattr(found.chunks, "aclose", None)
        if close is not None:
            with contextlib.suppress(StorageError):
                await close()


def _result(record: ImageRecord) -> ImageResult:
    if record.status is ImageStatus.FAILED:
        raise Problem(
            404,
            "image_failed",
            "The image could not be processed, so it has no content; its record has the error.",
        )
    if record.result is None:
        raise Problem(
            409,
            "image_not_ready",
            "The image is not processed yet. Watch its events, or try again later.",
            headers={"Retry-After": "1"},
        )
    return record.result


router = APIRouter(tags=["images"])


@router.get(
    paths.IMAGE_CONTENT, response_class=Response, summary="Download the processed image", **CONTENT
)
async def download_image(
    request: Request, image_id: CheckedImageId, if_none_match: IfNoneMatch = None
) -> Response:
    """Returns the processed image, or a redirect to it."""
    return await content(request, await find_image(request, image_id), if_none_match)
