"""Where the dashboard is."""

from __future__ import annotations

from typing import Final

PAGES: Final = "/ui"
PAGE: Final = "/ui/{path:path}"
FILE: Final = "/ui/static/{name:path}"
SESSION: Final = "/ui/session"


def is_page(path: str) -> bool:
    """Whether it is the dashboard or below it."""
    return path == PAGES or path.startswith(PAGES + "/")
