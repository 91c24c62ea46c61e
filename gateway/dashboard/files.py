"""The dashboard's files as the gateway serves them: a closed set of names, each with its tag."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).parent / "static"
#: Names that may be asked for: no dot but the last, so no way out of the directory.
_NAME = re.compile(r"\A(?:[A-Za-z0-9_]+/)?[A-Za-z0-9_]+\.(js|css|svg|html)\Z")
_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}


class StaticFile(NamedTuple):
    """A file with what browsers ask about it."""

    content: bytes
    media_type: str
    etag: str


class Files:
    """Reads a file when it is asked for, and again only when it has changed."""

    def __init__(self, directory: Path = STATIC) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[int, int], StaticFile]] = {}

    def get(self, name: str) -> StaticFile | None:
        """The file of that name; None where there is none, or none of ours."""
        match = _NAME.match(name)
        if match is None:
            return None
        path = self._directory / name
        try:
            stat = path.stat()
            version = stat.st_mtime_ns, stat.st_size
            known = self._read.get(name)
            if known is None or known[0] != version:
                content = path.read_bytes()
                tag = hashlib.sha256(content).hexdigest()[:20]
                known = version, StaticFile(content, _TYPES[match[1]], f'"{tag}"')
                self._read[name] = known
        except OSError:
            return None
        return known[1]
