"""Where a command writes: data on stdout, words for people on stderr."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from client.exits import Exit
from client.terminal import paint, table
from client.terminal.progress import Progress
from client.terminal.table import Column
from client.terminal.text import as_json, harmless, printable

TABLE, JSON, JSONL = "table", "json", "jsonl"


def add_output(parser: argparse.ArgumentParser, *kinds: str) -> None:
    """The options that say how a command writes."""
    parser.add_argument(
        "-o",
        "--output",
        choices=kinds or (TABLE, JSON, JSONL),
        default=TABLE,
        help="for people (the default), or JSON: one document, or one a line",
    )
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """The option of those who want the data and nothing else."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="nothing on stderr but what went wrong"
    )


class Console:
    """One command's stdout and stderr."""

    def __init__(self, output: str = TABLE, *, quiet: bool = False) -> None:
        self.output = output
        self.quiet = quiet
        if sys.stdout is None:  # closed by whoever started us
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self.terminal = sys.stdout.isatty()
        self.paint = paint.Paint(paint.wanted(sys.stdout))
        self.progress = Progress(quiet=quiet)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Console:
        """As the command line wants it."""
        return cls(getattr(arguments, "output", TABLE), quiet=getattr(arguments, "quiet", False))

    @property
    def for_people(self) -> bool:
        """Whether it is a table that is wanted."""
        return self.output == TABLE

    # -- data ---------------------------------------------------------------------------------

    def line(self, text: object) -> None:
        """One line."""
        self.progress.clear()
        print(printable(text), flush=True)

    def painted(self, text: str) -> None:
        """One line that is safe and coloured already."""
        self.progress.clear()
        print(text, flush=True)

    def stream(self, text: str) -> None:
        """Text as it comes, without a line end; unchanged where no terminal is to be spared."""
        self.progress.clear()
        sys.stdout.write(harmless(text) if self.terminal else text)
        sys.stdout.flush()

    def json(self, value: object) -> None:
        """One value, as the output option says; indented for people."""
        self.progress.clear()
        print(as_json(value, indent=None if self.output == JSONL else 2), flush=True)

    def listing(self, columns: Sequence[Column], rows: Iterable[Any], empty: str = "") -> None:
        """Rows: a table, a JSON list, or a JSON document a line."""
        if self.output == JSONL:
            for row in rows:
                self.json(row)
        elif self.output == JSON:
            self.json(list(rows))
        else:
            rows = list(rows)
            self.progress.clear()
            if not rows:
                self.say(empty)
                return
            for text in table.lines(columns, rows, self.paint, self.screen):
                print(text)
            sys.stdout.flush()

    def facts(self, pairs: Iterable[tuple[str, object]], data: object) -> None:
        """One thing: its facts below each other for people, all of it as JSON for programs."""
        if not self.for_people:
            self.json(data)
            return
        pairs = [(name, value) for name, value in pairs if value is not None and value != ""]
        room = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            text = printable(value)
            self.painted(f"{name:{room}}  {self.paint.status(text)}")

    @property
    def screen(self) -> int | None:
        """How many columns there are; None where nobody counts them."""
        return shutil.get_terminal_size().columns if self.terminal else None

    # -- words for people ---------------------------------------------------------------------

    def say(self, text: object) -> None:
        """A word to the person, unless none is wanted."""
        if text and not self.quiet:
            self.complain(text)

    def complain(self, text: object) -> None:
        """A word that has to be said."""
        self.progress.clear()
        print(printable(text), file=sys.stderr, flush=True)

    def confirm(self, question: str, yes: bool) -> bool:
        """Whether the person wants that; without a terminal, only where it was said before."""
        return yes or (self.can_ask and self.ask(question))

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def ask(self, question: str) -> bool:
        """Yes or no; no, unless yes is said."""
        self.progress.clear()
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):  # the end of the input
            print(file=sys.stderr)
        return answer.strip().lower() in ("y", "yes")


def unread(run: Callable[[], int]) -> int:
    """Run until the end, or until whoever reads us has seen enough."""
    try:
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # and keep the interpreter from trying again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.UNREAD
