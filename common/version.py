"""The version of Sluice and the oldest Redis that it supports."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
#: The oldest Redis release with every command that Sluice uses (XAUTOCLAIM).
OLDEST_REDIS: Final = (6, 2)
