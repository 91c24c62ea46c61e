"""Random names, at a fraction of the price of the uuid module."""

from __future__ import annotations

import os

_VARIANT = "89ab"


def new_job_id(tail: str = "") -> str:
    """A version 4 UUID; the last twelve digits are the tenant's, where there is one."""
    digits = os.urandom(16).hex()
    if tail:
        digits = digits[:20] + tail
    variant = _VARIANT[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def new_request_id() -> str:
    """32 hexadecimal digits."""
    return os.urandom(16).hex()
