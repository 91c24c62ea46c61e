"""`sluice top`: everything at a glance, live; one line a look where there is no terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.words import duration_s, natural
from client.exits import Exit
from client.terminal.console import JSONL, TABLE, Console, add_output

if TYPE_CHECKING:
    from client import Sluice
    from client.commands.top_view import View

EVERY_S, LEAST_S = 1.0, 0.2
NEWEST = 50
HOLD, QUIT = " ", ("q", "Q", "\x03", "\x04")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Numbers, curves, workers and the newest jobs, drawn anew each second. Keys: space holds, "
        "q quits. Without a terminal, or with -o jsonl, a line a look."
    )
    parser.add_argument("--every", type=duration_s, default=EVERY_S, metavar="TIME", help="(1s)")
    parser.add_argument("-n", "--count", type=natural, metavar="N", help="end after so many looks")
    parser.add_argument("--plain", action="store_true", help="a line a look on a terminal, too")
    add_gateway(parser)
    add_output(parser, TABLE, JSONL)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.of(arguments), connect(arguments)
    every_s = max(LEAST_S, arguments.every)
    whole = console.for_people and console.terminal and sys.stdin.isatty() and not arguments.plain
    if whole:
        return _full(console, sluice, every_s, arguments.count)
    return _lines(console, sluice, every_s, arguments.count)


def _lines(console: Console, sluice: Sluice, every_s: float, count: int | None) -> int:
    from client.commands.top_view import plain

    looks = 0
    while True:
        if console.for_people:
            console.line(plain(look(sluice, stats_only=True)))
        else:
            console.json(look(sluice, stats_only=True).now)
        looks += 1
        if looks == count:
            return Exit.OK
        time.sleep(every_s)


def _full(console: Console, sluice: Sluice, every_s: float, count: int | None) -> int:
    from client.commands.top_view import lines
    from client.errors import SluiceError
    from client.terminal.screen import FullScreen

    view = look(sluice)  # whoever is not there is told of before the screen is taken
    looks, held = 1, False
    with FullScreen() as screen:
        while True:
            columns, rows = screen.size
            screen.draw(lines(view, columns, rows, console.paint, held=held))
            if looks == count:
                return Exit.OK
            key = screen.key(every_s)
            if key in QUIT:
                return Exit.OK
            held = held != (key == HOLD)
            if held:
                continue
            try:
                view = look(sluice)
            except SluiceError as error:
                view.troubles = [f"{error}; trying again"]
            looks += 1


def look(sluice: Sluice, *, stats_only: bool = False) -> View:
    """Ask for everything; a key that may not see a part is shown the others."""
    from client.commands.top_view import View

    view = View(sluice.url, time.time() * 1000)
    view.stats = _part(view, "numbers", lambda: sluice.stats("10m").raw, {})
    if stats_only:
        return view
    view.workers = _part(view, "workers", lambda: [each.raw for each in sluice.workers()], ())
    view.queue = _part(view, "queue", lambda: _queue(sluice), {})
    view.jobs = _part(
        view, "jobs", lambda: [job.raw for job in sluice.jobs_page(limit=NEWEST).jobs], ()
    )
    return view


def _part(view: View, what: str, ask: Callable[[], Any], nothing: Any) -> Any:
    from client.errors import NotAllowed

    try:
        return ask()
    except NotAllowed as error:
        view.troubles.append(f"no {what}: {error.detail or error}")
        return nothing


def _queue(sluice: Sluice) -> Any:
    from client.commands.queue import job_queue

    return job_queue(sluice.queues())
