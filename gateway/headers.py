"""The headers of every answer: nothing of it is framed, sniffed, cached or run."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Message

Header = tuple[bytes, bytes]

POLICY = b"content-security-policy"
CACHING = b"cache-control"
#: Answers are data, but for pages that bring a policy of their own.
NO_CONTENT = (POLICY, b"default-src 'none'; frame-ancestors 'none'")
NO_STORE = (CACHING, b"no-store")
#: Appended to every answer as they are.
ALWAYS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
#: What nearly all answers get; made once.
_USUAL = (*ALWAYS, NO_CONTENT, NO_STORE)
_OWN_CACHING = (*ALWAYS, NO_CONTENT)
_OWN_POLICY = (*ALWAYS, NO_STORE)

#: For answers that are pages: no window of another site has a hand in them.
PAGE = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def strict(given: Iterable[Header]) -> tuple[Header, ...]:
    """What is missing in the headers of an answer; a route's own policy and caching stay."""
    caching = policy = False
    for name, _ in given:
        if name == CACHING:
            caching = True
        elif name == POLICY:
            policy = True
    if not caching:
        return _OWN_POLICY if policy else _USUAL
    return ALWAYS if policy else _OWN_CACHING


def complete(message: Message, *more: Header) -> None:
    """Add the strict headers, and some more, to an answer's start."""
    given = message["headers"]
    message["headers"] = [*given, *more, *strict(given)]
