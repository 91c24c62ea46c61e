"""Describes failed HTTP requests and parses Retry-After."""

from __future__ import annotations

import email.utils
import math
import os
import socket
import ssl
import time

#: Errors whose `errno` is not a system error number.
_WITH_OWN_NUMBERS = (ssl.SSLError, socket.gaierror)


def root_cause(error: BaseException) -> str:
    """The underlying cause, such as `Connection refused` instead of `All connection attempts
    failed`; empty if unknown.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, OSError) and cause.strerror:
            if isinstance(cause, _WITH_OWN_NUMBERS) or not cause.errno:
                return cause.strerror
            return os.strerror(cause.errno)  # asyncio replaces `strerror` by another text
        group = getattr(cause, "exceptions", None)
        cause = group[0] if group else (cause.__cause__ or cause.__context__)
    return ""


def parse_retry_after(value: str | None, most_s: float) -> float | None:
    """Seconds until retry, from either form of the Retry-After header, capped at `most_s`."""
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
