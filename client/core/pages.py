"""A page of a listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

M_co = TypeVar("M_co", covariant=True)


@dataclass(frozen=True)
class Page(Generic[M_co]):
    """Some of them; `next` leads on, also from a page that is short or empty."""

    items: Sequence[M_co]
    next: str | None
    total: int | None = None
