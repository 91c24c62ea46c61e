"""Which names an object may have in a store."""

from __future__ import annotations

import re
from typing import Final

#: Parts of letters, digits, `.`, `_` and `-`, none of which begins with a dot: no way out of a
#: directory, no hidden file, nothing to be quoted in a URL.
_KEY: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]*(/[0-9A-Za-z_-][0-9A-Za-z._-]*)*")
_LONGEST: Final = 512


def checked_key(key: str) -> str:
    """The key itself; raises ValueError for one that no store takes."""
    if len(key) > _LONGEST or not _KEY.fullmatch(key):
        raise ValueError(f"{key[:80]!r} cannot be the key of an object")
    return key
