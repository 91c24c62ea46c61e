"""`GET /ui/…`: the pages of the dashboard and their static files. They contain no data."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sluice.gateway.http.headers import accepts_gzip, if_none_match, is_etag_listed, not_modified
from sluice.gateway.http.paths import DASHBOARD, DASHBOARD_FILE, DASHBOARD_PAGE
from sluice.gateway.http.security import PAGE_HEADERS

STATIC: Final = Path(__file__).parent / "static"
#: Accepted file names, at most two directories deep. The only dot is the one before the suffix, so
#: no name leads out of the directory.
_NAME = re.compile(r"\A(?:[A-Za-z0-9_]+/){0,2}[A-Za-z0-9_]+\.(js|css|svg|html)\Z")
_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}


class Encoded(NamedTuple):
    """The content of a file in one encoding, and its ETag."""

    content: bytes
    etag: str


class StaticFile(NamedTuple):
    """A file as it is and compressed."""

    media_type: str
    plain: Encoded
    #: None if compression does not make the file smaller.
    gzipped: Encoded | None

    @classmethod
    def of(cls, content: bytes, media_type: str) -> StaticFile:
        tag = hashlib.sha256(content).hexdigest()[:20]
        # Without the time, all gateways send the same bytes for an ETag.
        smaller = gzip.compress(content, mtime=0)
        gzipped = Encoded(smaller, f'"{tag}-gzip"') if len(smaller) < len(content) else None
        return cls(media_type, Encoded(content, f'"{tag}"'), gzipped)


class FileCache:
    """Static files in memory, compressed once. A file is read again only after it has changed."""

    def __init__(self, directory: Path = STATIC) -> None:
        self._directory = directory
        self._cache: dict[str, tuple[tuple[int, int], StaticFile]] = {}

    def get(self, name: str) -> StaticFile | None:
        """The file of that name below the directory; None if there is none."""
        match = _NAME.match(name)
        if match is None:
            return None
        path = self._directory / name
        try:
            stat = path.stat()
            version = stat.st_mtime_ns, stat.st_size
            cached = self._cache.get(name)
            if cached is None or cached[0] != version:
                cached = version, StaticFile.of(path.read_bytes(), _TYPES[match[1]])
                self._cache[name] = cached
        except OSError:
            return None
        return cached[1]


CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
#: Browsers keep the files but revalidate them: after an upgrade no old file is used.
CACHE_CONTROL: Final = "no-cache"
_INDEX = "index.html"


def install(app: FastAPI) -> None:
    """Add the routes of the dashboard; call after all other routes below /ui are added."""
    files = FileCache()

    async def page(request: Request) -> Response:
        """The HTML of every page; the script renders the page of the address."""
        return _file_response(request, files.get(_INDEX))

    async def static(request: Request) -> Response:
        """A script, style sheet or image."""
        name: str = request.path_params["name"]
        return _file_response(request, None if name == _INDEX else files.get(name))

    methods = ["GET", "HEAD"]
    app.add_route(DASHBOARD_FILE, static, methods=methods, include_in_schema=False)
    app.add_route(DASHBOARD, page, methods=methods, include_in_schema=False)
    app.add_route(DASHBOARD_PAGE, page, methods=methods, include_in_schema=False)


def _file_response(request: Request, file: StaticFile | None) -> Response:
    if file is None:
        raise HTTPException(404)
    compressed = file.gzipped if accepts_gzip(request) else None
    encoded = compressed or file.plain
    headers = {
        **PAGE_HEADERS,
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Cache-Control": CACHE_CONTROL,
        "ETag": encoded.etag,
        "Vary": "Accept-Encoding",
    }
    if is_etag_listed(if_none_match(request), encoded.etag, weak=False):
        return not_modified(headers)
    if compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(encoded.content, 200, {**headers, "Content-Type": file.media_type})
