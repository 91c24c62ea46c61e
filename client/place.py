"""Where the gateway is and who we are, unless somebody says otherwise."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from client.errors import Misconfigured

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE, KEY_VARIABLE = "SLUICE_URL", "SLUICE_API_KEY"


def local_url() -> str:
    """Where `sluice up` with this environment serves."""
    return f"http://{os.environ.get('HOST') or '127.0.0.1'}:{os.environ.get('PORT') or '8080'}"


def default_url() -> str:
    """The gateway that is meant where none is named."""
    return os.environ.get(URL_VARIABLE, "").strip() or local_url()


def checked_url(url: str | None) -> str:
    """A gateway's URL without a slash at its end; raises Misconfigured."""
    named = default_url() if url is None else url
    try:
        parts = urlsplit(named)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not named.isprintable() or " " in named or parts.query or parts.fragment:
        raise Misconfigured(
            f"{named!r} is no URL of a gateway; set --url or {URL_VARIABLE} to one such as "
            f"{DEFAULT_URL}"
        )
    if parts.username is not None or parts.password is not None:
        raise Misconfigured(f"a gateway's URL names no user; a key goes to {KEY_VARIABLE}")
    return named.rstrip("/")


def checked_key(key: str | None) -> str:
    """The API key, empty for none; raises Misconfigured for what no header can carry."""
    named = (os.environ.get(KEY_VARIABLE, "") if key is None else key).strip()
    if not named.isascii() or not named.isprintable() or " " in named:
        raise Misconfigured(f"the API key ({KEY_VARIABLE}) has characters that no key has")
    return named
