"""The `sluice` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from sluice.commands import COMMANDS, GROUPS
from sluice.errors import ExitCode, SluiceError
from sluice.terminal.console import run_until_pipe_closes
from sluice.terminal.text import printable

_USAGE = """usage: sluice COMMAND [options]

POST a job over HTTP, watch it happen live over SSE, and never lose it.
"""
_MORE = """
`sluice COMMAND --help` says more. The gateway: --url or SLUICE_URL; the key: SLUICE_API_KEY.
Exit codes: 0 ok, 1 failed, 2 wrong use, 3 canceled, 4 not allowed, 5 no gateway, 6 timeout,
7 too busy; docs/cli.md has the rest."""


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts options before, between and after optional positionals.

    argparse itself takes an optional positional as missing at the first option. A parser with
    subcommands leaves that to their parsers, which are of this class too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_intermixed = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the known arguments."""
        plain = self._is_intermixed or self._subparsers is not None or self._takes_remainder
        if plain:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    @property
    def _takes_remainder(self) -> bool:
        return any(action.nargs == argparse.REMAINDER for action in self._actions)


def main() -> None:
    """Run the command line; ends the process with the command's exit code."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    first, rest = (words[0], list(words[1:])) if words else ("", [])
    if first == "help" and rest[:1]:
        first, rest = rest[0], ["--help"]
    if first in ("-h", "--help", "help"):
        return run_until_pipe_closes(_help)
    if first in ("-V", "--version"):
        first = "version"
    if first not in COMMANDS:
        return _unknown_command(first)
    parser = parser_for(first)
    arguments = parser.parse_args(rest)
    try:
        return run_until_pipe_closes(lambda: int(arguments.run(arguments)))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _report_error(error)


def parser_for(name: str) -> argparse.ArgumentParser:
    """A command's parser; imports its module."""
    command = COMMANDS[name]
    module = import_module(command.module)
    parser = Parser(
        prog=f"sluice {name}", description=f"{command.purpose[0].upper()}{command.purpose[1:]}."
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def _report_error(error: Exception) -> int:
    """Print an expected error in one line and return its exit code; raises unexpected ones."""
    if isinstance(error, OSError):  # network errors were raised as SluiceErrors
        code: int = ExitCode.IO_ERROR
    elif isinstance(error, SluiceError):
        code = error.exit_code
    else:
        raise error
    if sys.stderr is not None:
        print(printable(f"sluice: {error}"), file=sys.stderr, flush=True)
    return code


def _help() -> int:
    print(_USAGE)
    width = max(map(len, COMMANDS))
    for title, commands in GROUPS.items():
        print(f"{title}:")
        for name, command in commands.items():
            print(f"  {name:{width}}  {command.purpose}")
    print(_MORE)
    return ExitCode.OK


def _unknown_command(word: str) -> int:
    if not word:
        print(
            f"{_USAGE}\ncommands: {' '.join(COMMANDS)}\n`sluice --help` says more", file=sys.stderr
        )
        return ExitCode.USAGE
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean `sluice {near[0]}`?" if near else "`sluice --help` has them all"
    print(printable(f"sluice: there is no command {word!r}; {hint}"), file=sys.stderr)
    return ExitCode.USAGE
