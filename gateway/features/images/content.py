"""The processed image on its way out: from the store through us, or by a place of its own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from common.contracts.images import CONTENT_TYPE, STORAGE_SUFFIX, ImageStatus
from common.features.images.records import ImageRecord, ImageResult
from common.features.images.storage.base import ObjectContent, StorageError
from gateway.features.images.delete import storage_unavailable
from gateway.features.images.lookup import CheckedImageId, find_image
from gateway.features.images.openapi import CONTENT
from gateway.features.images.state import images_of
from gateway.http import paths
from gateway.http.headers import IfNoneMatch, is_etag_listed, not_modified
from gateway.http.problems import Problem

#: Seconds a place of its own is good for.
URL_TTL_S: Final = 300
#: What is stored under an id does not change; it may be deleted, though.
_CACHE: Final = "private, max-age=3600"
_UNSAFE: Final = re.compile(r'[^A-Za-z0-9 ._()+=@-]|"')
_MOST_STEM: Final = 120
#: What another pipeline calls so may be anything, and not all of that fits in a header.
_ETAG: Final = re.compile(r"[\x21\x23-\x7e]{1,256}")


async def content(request: Request, record: ImageRecord, known: str | None) -> Response:
    """The answer to a request for the bytes of an image. `known`: its If-None-Match."""
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
        place = await storage.url(result.storage_key, URL_TTL_S)
        if place is not None:
            return Response(None, 307, {"Location": place, "Cache-Control": "no-store"})
        found = await storage.read(result.storage_key)
    except StorageError as error:
        raise storage_unavailable(error) from None
    if found is None:
        raise Problem(410, "content_gone", "The store does not have this image any more.")
    headers["Content-Length"] = str(found.size_bytes)
    media_type = result.content_type if result.content_type == CONTENT_TYPE else _OTHER
    return StreamingResponse(_chunks(found), 200, headers, media_type)


#: What another pipeline says it stored is for nobody's browser to run.
_OTHER: Final = "application/octet-stream"


def disposition(record: ImageRecord) -> str:
    """Content-Disposition: the client's name for it, of which nothing can be harmful."""
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
            "The image could not be processed; its record says why. There is nothing to fetch.",
        )
    if record.result is None:
        raise Problem(
            409,
            "image_not_ready",
            "The image is not processed yet. Watch its events, or come back.",
            headers={"Retry-After": "1"},
        )
    return record.result


router = APIRouter(tags=["images"])


@router.get(
    paths.IMAGE_CONTENT, response_class=Response, summary="Fetch the processed image", **CONTENT
)
async def read_content(
    request: Request, image_id: CheckedImageId, if_none_match: IfNoneMatch = None
) -> Response:
    """Its bytes, or where to fetch them."""
    return await content(request, await find_image(request, image_id), if_none_match)
