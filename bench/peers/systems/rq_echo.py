"""rq's job: in a module of its own, for a worker finds it by name."""

from __future__ import annotations

from typing import Any


def echo(payload: Any) -> Any:
    """The job."""
    return payload
