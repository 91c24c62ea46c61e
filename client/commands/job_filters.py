"""Which jobs are meant: the filters of `sluice ls` and `sluice cancel --all-matching`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from client.commands.words import STATUSES, TASKS, moment

if TYPE_CHECKING:
    from client import JobSummary, Sluice

#: Jobs that one request is asked for.
PAGE = 200


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add = parser.add_argument
    add("--status", action="append", choices=STATUSES, help="may be repeated")
    add("--task", action="append", choices=TASKS, help="may be repeated")
    add(
        "-s",
        "--search",
        metavar="TEXT",
        help="the beginning of an id, or text in payload, result or error",
    )
    add("--since", type=moment, metavar="WHEN", help="such as 10m, 2h, 2030-01-31T08:00:00Z")
    add("--until", type=moment, metavar="WHEN", help="likewise")
    add("--tenant", help="only this tenant's; for admins")


def filters_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """As the client takes them."""
    return {
        "status": arguments.status,
        "task": arguments.task,
        "q": arguments.search,
        "since": arguments.since,
        "until": arguments.until,
        "tenant": arguments.tenant,
    }


def matching(
    sluice: Sluice, filters: dict[str, Any], most: int | None = None
) -> Iterator[JobSummary]:
    """Jobs, the newest first; no more than so many."""
    size = PAGE if most is None else min(PAGE, most)
    return islice(sluice.jobs(**filters, page_size=size), most)
