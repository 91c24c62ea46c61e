"""`GET /`: redirects a browser to the dashboard, and lists the main paths for other clients."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, RedirectResponse, Response

from sluice.gateway.auth.callers import LOCAL, caller_of
from sluice.gateway.http.paths import DASHBOARD
from sluice.gateway.state import state_of

_DOCS: Final = "/docs"
_HTML: Final = "text/html"
#: The answer depends on this header.
_VARY: Final = {"Vary": "Accept"}

router = APIRouter(tags=["health"])


class StartView(BaseModel):
    """Paths of the gateway. `dashboard` is missing with DASHBOARD=off."""

    service: str = "sluice"
    dashboard: str | None = DASHBOARD
    docs: str = _DOCS
    openapi: str = "/openapi.json"
    jobs: str = "/v1/jobs"
    status: str = "/v1/status"
    liveness: str = "/healthz"
    readiness: str = "/readyz"


@router.get(
    "/",
    summary="List the main paths",
    response_model=StartView,
    responses={302: {"description": "To the dashboard or `/docs`, for `Accept: text/html`."}},
)
@router.head("/", include_in_schema=False)
async def list_paths(request: Request) -> Response:
    """Redirects a browser to the dashboard; without dashboard to `/docs`, if that needs no key."""
    has_dashboard = state_of(request).settings.dashboard != "off"
    if _HTML in request.headers.get("accept", "").lower():
        if has_dashboard:
            return RedirectResponse(DASHBOARD, 302, _VARY)
        if caller_of(request) is LOCAL:
            return RedirectResponse(_DOCS, 302, _VARY)
    view = StartView(dashboard=DASHBOARD if has_dashboard else None)
    return JSONResponse(view.model_dump(exclude_none=True), headers=_VARY)
