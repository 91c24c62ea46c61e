"""`GET /ui` and what is below it: the dashboard's pages and files. There is no data in them."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.dashboard.files import Files, StaticFile
from gateway.dashboard.paths import FILE, PAGE, PAGES
from gateway.headers import PAGE as PAGE_HEADERS

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Kept by browsers, but asked about each time: after an upgrade nothing old is shown.
CACHING: Final = "no-cache"
_INDEX = "index.html"


def install(app: FastAPI) -> None:
    """Serve the dashboard; after all other routes below /ui."""
    files = Files()

    async def page(request: Request) -> Response:
        """The shell of every page."""
        return _served(request, files.get(_INDEX))

    async def static(request: Request) -> Response:
        """One of the files it is made of."""
        name: str = request.path_params["name"]
        return _served(request, None if name == _INDEX else files.get(name))

    async def home(request: Request) -> Response:
        """Browsers that ask for nothing in particular see the dashboard."""
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return RedirectResponse(PAGES, 302)

    methods = ["GET", "HEAD"]
    app.add_route("/", home, methods=methods, include_in_schema=False)
    app.add_route(FILE, static, methods=methods, include_in_schema=False)
    app.add_route(PAGES, page, methods=methods, include_in_schema=False)
    app.add_route(PAGE, page, methods=methods, include_in_schema=False)


def _served(request: Request, file: StaticFile | None) -> Response:
    if file is None:
        raise HTTPException(404)
    headers = {
        **PAGE_HEADERS,
        "Content-Security-Policy": POLICY,
        "Cache-Control": CACHING,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(None, 304, headers)
    return Response(file.content, 200, {**headers, "Content-Type": file.media_type})
