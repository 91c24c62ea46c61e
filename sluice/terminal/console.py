"""The output of a command: data on stdout, messages on stderr."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluice.errors import ExitCode
from sluice.terminal import render
from sluice.terminal.render import Column
from sluice.terminal.screen import Progress
from sluice.terminal.text import as_json, printable, printable_lines

TABLE, JSON, JSONL = "table", "json", "jsonl"


_FORMATS = {TABLE: "a table", JSON: "one JSON document", JSONL: "one JSON value per line"}


def add_output_options(parser: argparse.ArgumentParser, *formats: str) -> None:
    add_format_option(parser, *formats)
    add_quiet_option(parser)


def add_format_option(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Add -o and --json. The first of `formats` is the default; all without any."""
    first, *others = formats = formats or (TABLE, JSON, JSONL)
    listed = ", ".join([f"{_FORMATS[first]} (default)", *map(_FORMATS.__getitem__, others)])
    parser.add_argument(
        "-o", "--output", choices=formats, default=first, help=f"output format: {listed}"
    )
    as_json = JSON if JSON in formats else JSONL
    parser.add_argument(
        "--json",
        dest="output",
        action="store_const",
        const=as_json,
        help=f"the same as -o {as_json}",
    )


def add_quiet_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print only errors on stderr")


class Console:
    """The stdout and stderr of one command."""

    def __init__(self, output: str = TABLE, *, quiet: bool = False) -> None:
        self.output = output
        self.quiet = quiet
        if sys.stdout is None:  # closed by the parent process
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self.is_terminal = sys.stdout.isatty()
        self.colors = render.Colors(render.supports_color(sys.stdout))
        self.progress = Progress(quiet=quiet)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Console:
        return cls(getattr(arguments, "output", TABLE), quiet=getattr(arguments, "quiet", False))

    @property
    def is_table(self) -> bool:
        return self.output == TABLE

    # -- data ---------------------------------------------------------------------------------

    def print_line(self, text: object) -> None:
        self.progress.clear()
        print(printable(text), flush=True)

    def write(self, text: str) -> None:
        """Write text without adding a newline. In a pipe the text is not modified."""
        self.progress.clear()
        sys.stdout.write(printable_lines(text) if self.is_terminal else text)
        sys.stdout.flush()

    def print_json(self, value: object) -> None:
        """Print a JSON value: on one line for `-o jsonl`, else indented."""
        self.progress.clear()
        print(as_json(value, indent=None if self.output == JSONL else 2), flush=True)

    def print_value(self, text: object, data: object) -> None:
        """Print `text` for table output, or `data` as JSON."""
        if self.is_table:
            self.print_line(text)
        else:
            self.print_json(data)

    def print_rows(self, columns: Sequence[Column], rows: Iterable[Any], empty: str = "") -> None:
        """Print rows as a table, a JSON list or JSON lines; `empty` is the message for no rows."""
        if self.output == JSONL:
            for row in rows:
                self.print_json(row)
        elif self.output == JSON:
            self.print_json(list(rows))
        else:
            rows = list(rows)
            self.progress.clear()
            if not rows:
                self.info(empty)
                return
            for text in render.table_lines(columns, rows, self.colors, self.width):
                print(text)
            sys.stdout.flush()

    def print_details(self, pairs: Iterable[tuple[str, object]], data: object) -> None:
        """Print one object as name and value lines, omitting empty values, or `data` as JSON."""
        if not self.is_table:
            self.print_json(data)
            return
        pairs = [(name, value) for name, value in pairs if value is not None and value != ""]
        width = max((len(name) for name, _ in pairs), default=0)
        self.progress.clear()
        for name, value in pairs:
            print(f"{name:{width}}  {self.colors.status(printable(value))}", flush=True)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None if stdout is not a terminal."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    # -- messages -----------------------------------------------------------------------------

    def info(self, text: object) -> None:
        """Print a message on stderr, unless `-q` was given."""
        if text and not self.quiet:
            self.error(text)

    def error(self, text: object) -> None:
        """Print a message on stderr, even with `-q`."""
        self.progress.clear()
        print(printable(text), file=sys.stderr, flush=True)

    def confirm(self, question: str, yes: bool) -> bool:
        """True if the user agrees, or passed `-y`. False if there is no terminal to ask on."""
        return yes or (self.is_interactive and self.ask(question))

    def declined(self, message: str) -> int:
        """Print that the action was not confirmed; returns the exit code."""
        self.error(message)
        return ExitCode.FAILED if self.is_interactive else ExitCode.USAGE

    @property
    def is_interactive(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty()

    def ask(self, question: str) -> bool:
        """Ask a yes/no question; any answer other than y or yes means no."""
        self.progress.clear()
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer.endswith("\n"):  # end of input
            print(file=sys.stderr)
        return answer.strip().lower() in ("y", "yes")


def run_until_pipe_closes(run: Callable[[], int]) -> int:
    """Run a command; returns 141 if the reader of stdout closes the pipe before it ends."""
    try:
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Keep the interpreter from flushing stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
