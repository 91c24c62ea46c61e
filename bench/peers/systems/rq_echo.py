"""The job of rq, in a separate module because the worker imports it by name."""

from __future__ import annotations

from typing import Any


def echo(payload: Any) -> Any:
    return payload
