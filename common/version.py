"""Which Sluice this is, and which Redis it needs."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
#: The oldest server that has what we need (XAUTOCLAIM).
OLDEST_REDIS: Final = (6, 2)
