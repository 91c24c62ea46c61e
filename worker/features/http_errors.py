"""What a failed HTTP request means, in words, and how long its server asks us to wait."""

from __future__ import annotations

import email.utils
import math
import os
import socket
import ssl
import time

#: Errors whose number is none of the system's.
_WITH_OWN_NUMBERS = (ssl.SSLError, socket.gaierror)


def root_cause(error: BaseException) -> str:
    """`Connection refused` rather than `All connection attempts failed`; empty if unknown."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {seen.verify_message}"
        if isinstance(seen, OSError) and seen.strerror:
            if isinstance(seen, _WITH_OWN_NUMBERS) or not seen.errno:
                return seen.strerror
            return os.strerror(seen.errno)  # asyncio puts words of its own into the text
        group = getattr(seen, "exceptions", None)
        seen = group[0] if group else (seen.__cause__ or seen.__context__)
    return ""


def parse_retry_after(value: str | None, most_s: float) -> float | None:
    """The seconds that a Retry-After header asks for, in either of its forms, up to `most_s`."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
    if math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), most_s)
