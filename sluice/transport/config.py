"""The gateway's URL and the API key: arguments first, then the environment, then defaults."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from sluice.errors import Misconfigured

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE, KEY_VARIABLE = "SLUICE_URL", "SLUICE_API_KEY"


def local_url() -> str:
    """The URL at which `sluice up` with this environment serves."""
    return f"http://{os.environ.get('HOST') or '127.0.0.1'}:{os.environ.get('PORT') or '8080'}"


def default_url() -> str:
    """The gateway's URL if none is given."""
    return os.environ.get(URL_VARIABLE, "").strip() or local_url()


def resolve_url(url: str | None) -> str:
    """The gateway's URL without a trailing slash; raises Misconfigured."""
    given = default_url() if url is None else url
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not given.isprintable() or " " in given or parts.query or parts.fragment:
        raise Misconfigured(
            f"{given!r} is no URL of a gateway; set --url or {URL_VARIABLE} to one such as "
            f"{DEFAULT_URL}"
        )
    if parts.username is not None or parts.password is not None:
        raise Misconfigured(f"a gateway's URL names no user; a key goes to {KEY_VARIABLE}")
    return given.rstrip("/")


def resolve_key(key: str | None) -> str:
    """The API key, empty for none; raises Misconfigured for one that no header can carry."""
    given = (os.environ.get(KEY_VARIABLE, "") if key is None else key).strip()
    if not given.isascii() or not given.isprintable() or " " in given:
        raise Misconfigured(f"the API key ({KEY_VARIABLE}) has characters that no key has")
    return given
