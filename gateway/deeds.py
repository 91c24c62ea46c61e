"""Which requests may change something, whatever their method says."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

#: Below this path are documents, and searches among them.
DOCUMENTS: Final = "/v1/rag/"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def deed_of(scope: Scope) -> str:
    """The request's method. A search makes a job, so that no foreign page may ask for one."""
    path: str = scope["path"]
    makes_job = path.startswith(DOCUMENTS) and path.endswith("/search")
    method: str = "POST" if makes_job else scope["method"]
    return method


def changes(scope: Scope) -> bool:
    """Whether it may."""
    return deed_of(scope) not in SAFE
