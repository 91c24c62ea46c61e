"""The `sluice` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from client.commands import COMMANDS, GROUPS
from client.exits import Exit
from client.terminal.console import unread
from client.terminal.parser import Parser
from client.terminal.text import printable

_USAGE = """usage: sluice COMMAND [options]

POST a job over HTTP, watch it happen live over SSE, and never lose it.
"""
_MORE = """
`sluice COMMAND --help` says more. The gateway: --url or SLUICE_URL; the key: SLUICE_API_KEY.
Exit codes: 0 ok, 1 failed, 2 wrong use, 3 canceled, 4 not allowed, 5 no gateway, 6 timeout,
7 too busy; docs/cli.md has the rest."""


def main() -> None:
    """Run the command line; its exit code is the command's."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    first, rest = (words[0], list(words[1:])) if words else ("", [])
    if first == "help" and rest[:1]:
        first, rest = rest[0], ["--help"]
    if first in ("-h", "--help", "help"):
        return unread(_help)
    if first in ("-V", "--version"):
        first = "version"
    if first not in COMMANDS:
        return _wrong_use(first)
    parser = parser_for(first)
    arguments = parser.parse_args(rest)
    try:
        return unread(lambda: int(arguments.run(arguments)))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Exception as error:
        return _told(error)


def parser_for(name: str) -> argparse.ArgumentParser:
    """A command's own parser, its module loaded."""
    command = COMMANDS[name]
    module = import_module(command.module)
    parser = Parser(
        prog=f"sluice {name}", description=f"{command.purpose[0].upper()}{command.purpose[1:]}."
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def _told(error: Exception) -> int:
    """What went wrong, in one line; what nobody foresaw is a fault of ours, and shown whole."""
    from client.errors import SluiceError

    if isinstance(error, OSError):  # troubles with the network have been told by other names
        code: int = Exit.UNWRITTEN
    elif isinstance(error, SluiceError):
        code = error.exit_code
    else:
        raise error
    if sys.stderr is not None:
        print(printable(f"sluice: {error}"), file=sys.stderr, flush=True)
    return code


def _help() -> int:
    print(_USAGE)
    room = max(map(len, COMMANDS))
    for title, commands in GROUPS.items():
        print(f"{title}:")
        for name, command in commands.items():
            print(f"  {name:{room}}  {command.purpose}")
    print(_MORE)
    return Exit.OK


def _wrong_use(word: str) -> int:
    if not word:
        print(
            f"{_USAGE}\ncommands: {' '.join(COMMANDS)}\n`sluice --help` says more", file=sys.stderr
        )
        return Exit.USAGE
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean `sluice {near[0]}`?" if near else "`sluice --help` has them all"
    print(printable(f"sluice: there is no command {word!r}; {hint}"), file=sys.stderr)
    return Exit.USAGE
