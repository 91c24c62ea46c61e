"""Listings that come page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from client.core.calls import Answer
from client.core.pages import Page
from client.core.reading import member, models
from client.errors import BadAnswer

M = TypeVar("M")


def onward(cursor: str | None, following: str | None) -> str | None:
    """The next page's cursor; raises where it leads back to the one that was read."""
    if following is not None and following == cursor:
        raise BadAnswer("the gateway's listing does not come to an end")
    return following


def reading_page(
    kind: type[M], items: str = "items", following: str = "next", inside: tuple[str, ...] = ()
) -> Callable[[Answer], Page[M]]:
    """Reads a page; `inside` is the way to the member that has its cursor, else the top."""

    def read(answer: Answer) -> Page[M]:
        told = answer.json()
        found = models(kind, member(told, items))
        at = told
        for name in inside:
            at = member(at, name)
        cursor, total = at.get(following), at.get("total")
        if cursor is not None and not isinstance(cursor, str):
            raise BadAnswer("the gateway's answer has no usable cursor; check the URL")
        return Page(found, cursor or None, total if isinstance(total, int) else None)

    return read
