"""HTTP GET requests without proxies and redirects, for the doctor and the model probe."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import NamedTuple

#: Longer responses are truncated.
MAX_RESPONSE_BYTES = 1 << 20


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    body: bytes


#: Takes the URL, the timeout in seconds and headers.
Fetch = Callable[[str, float, Mapping[str, str]], Response]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Returns redirects as responses; Sluice's servers do not send any."""

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
