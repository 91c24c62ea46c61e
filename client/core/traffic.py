"""What both transports agree on: headers, bounds, and words for what goes wrong on the way."""

from __future__ import annotations

from typing import Any

from client.core.calls import JSON, Call
from client.errors import BadAnswer, Unreachable

#: No answer of a gateway is longer.
MOST_BYTES = 256 * 1024 * 1024
TIMEOUT_S = 30.0
AGENT = "sluice-client"


def first_headers(call: Call[Any], key: str) -> dict[str, str]:
    """Those of a request, with ours."""
    headers = {"Accept": f"{JSON}, */*;q=0.5", "User-Agent": AGENT, **call.headers}
    if key:
        headers.setdefault("Authorization", f"Bearer {key}")
    return headers


def unreachable(url: str, error: object) -> Unreachable:
    """Nobody is there."""
    return Unreachable(
        f"no gateway answers at {url} ({error}); start one with `sluice up`, "
        "or name another with --url or SLUICE_URL"
    )


def no_gateway(url: str) -> BadAnswer:
    """Somebody is there who makes no sense."""
    return BadAnswer(f"what answers at {url} is no gateway of Sluice; check the URL")


def too_long(url: str) -> BadAnswer:
    """More than anybody wants."""
    return BadAnswer(f"the answer of {url} is longer than {MOST_BYTES >> 20} MB")
