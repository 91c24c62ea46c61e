"""One GET request, straight to where it should go: no proxy, no being led elsewhere."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import NamedTuple

#: Bytes of an answer that are read.
LONGEST_ANSWER = 1 << 20


class Answer(NamedTuple):
    """What a web server answered."""

    status: int
    body: bytes


#: URL, time limit in seconds, headers.
Fetch = Callable[[str, float, Mapping[str, str]], Answer]


class _Stay(urllib.request.HTTPRedirectHandler):
    """None of ours redirects anybody; whoever does is somebody else."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetch_url(url: str, timeout_s: float, headers: Mapping[str, str]) -> Answer:
    """Ask once; raises OSError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay())
    try:
        request = urllib.request.Request(url, headers=dict(headers))
        with opener.open(request, timeout=timeout_s) as answer:
            return Answer(answer.status, answer.read(LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(LONGEST_ANSWER))
