"""Keeps secrets out of log lines: API keys, credentials of requests, passwords in URLs."""

from __future__ import annotations

import re

#: Most lines hold none of these and cost a few searches for a substring, no more. All of them in
#: lower case, as what they are looked for in.
_TRIGGERS = ("sluice_", "bearer", "authorization", "password=", "://")

_SECRETS = re.compile(
    r"""
    (?P<key> sluice_ [a-z0-9]{4,16} _ ) [a-z0-9]{12,}           # the id may be shown
    | (?P<option> [?&] (?:sentinel_)? password= ) [^\s'"&]+
    | (?P<header> authorization ['"]? \s* [:=,] \s* (?:b?['"])? )
        (?: [a-z0-9-]+ [ ]+ ['"]? )? [^\s'",;)\]}]+
    | (?P<bearer> bearer [ ]+ ) [a-z0-9._~+/=-]{8,}
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: All that may be a URL, or several without a space between them, and where a password may begin.
#: One expression for both would try every beginning with every end: hours for a long text.
_URLS = re.compile(r"""://[^\s'"<>]+""")
_USER = re.compile(r"://[^/:@]*:")
MASK = "***"


def mask(text: str) -> str:
    """The same text, secrets blotted out."""
    lower = text.lower()
    for trigger in _TRIGGERS:
        if trigger in lower:
            return _URLS.sub(_blot_password, _SECRETS.sub(_blot, text))
    return text


def _blot(found: re.Match[str]) -> str:
    return f"{found[found.lastgroup or 0]}{MASK}"


def _blot_password(found: re.Match[str]) -> str:
    urls = found[0]
    end = urls.rfind("@")
    begin = _USER.search(urls, 0, max(end - 1, 0))
    return urls if begin is None else f"{urls[: begin.end()]}{MASK}{urls[end:]}"
