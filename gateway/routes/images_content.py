"""`GET /v1/images/{image_id}/content`: the processed image."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.images import paths
from gateway.images.content import content
from gateway.images.lookup import find_image
from gateway.openapi import direct_route
from gateway.openapi_images import CONTENT

router = APIRouter(route_class=direct_route(APIRoute), tags=["images"])


@router.get(paths.CONTENT, response_class=Response, summary="Fetch the processed image", **CONTENT)
async def read_content(request: Request) -> Response:
    """Its bytes, or where to fetch them."""
    return await content(request, await find_image(request))
