"""One GET request without proxy and redirects."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import NamedTuple

#: No more of a response is read.
MAX_RESPONSE_BYTES = 1 << 20


class Response(NamedTuple):
    """The response of a web server."""

    status: int
    body: bytes


#: URL, time limit in seconds, headers.
Fetch = Callable[[str, float, Mapping[str, str]], Response]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A server that redirects is not one of Sluice's; its response is returned as it is."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetch_url(url: str, timeout_s: float, headers: Mapping[str, str]) -> Response:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        request = urllib.request.Request(url, headers=dict(headers))
        with opener.open(request, timeout=timeout_s) as response:
            return Response(response.status, response.read(MAX_RESPONSE_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return Response(error.code, error.read(MAX_RESPONSE_BYTES))
