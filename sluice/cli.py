"""The `sluice` command."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO

from sluice.commands import COMMANDS, GROUPS
from sluice.errors import SERVER_EXTRA, ExitCode, MissingRequirement, NotFound, SluiceError
from sluice.terminal.console import run_until_pipe_closes
from sluice.terminal.text import printable

_USAGE = """usage: sluice COMMAND [options]

Submit jobs, follow them live, and operate the gateway and its workers.
"""
_MORE = """
Examples:
  sluice up
  sluice submit chat "Why is the sky blue?" --stream
  sluice ls --status error --since 1h
  sluice dlq groups

`sluice COMMAND --help` prints the options of a command, with examples.
Set the gateway with --url or SLUICE_URL, and the API key with SLUICE_API_KEY.
Exit codes: 0 ok, 1 failed, 2 invalid arguments, 3 canceled, 4 not allowed,
5 no gateway, 6 timeout, 7 overloaded; docs/cli.md lists all of them."""
#: A missing module of this package is a defect.
_OWN_PACKAGE = "sluice"
#: Options of most commands, which may stand before the command.
_VALUE_OPTIONS = ("--url", "-o", "--output")
_COMMON_OPTIONS = (*_VALUE_OPTIONS, "--json", "-q", "--quiet")
#: Commands, actions and statuses, with the words of other tools; for suggestions only.
_SYNONYMS = {
    "ls": "ps list jobs search",
    "submit": "run enqueue send",
    "watch": "follow attach",
    "get": "show describe inspect",
    "events": "log logs",
    "cancel": "kill stop rm",
    "retry": "requeue",
    "dlq": "redrive",
    "up": "start serve",
    "doctor": "status health",
    "config": "settings",
    "rm": "delete remove",
    "queued": "waiting pending",
    "running": "active",
    "done": "completed finished succeeded",
    "error": "failed",
    "canceled": "cancelled",
}
#: How argparse begins the error for missing arguments, such as the action of a group of commands.
_MISSING = "the following arguments are required"
#: Characters of a complete job id.
_JOB_ID_CHARS = 36
#: The first line of a parser's epilog; its other lines are commands.
_EXAMPLES = "Examples:"


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions, but keeps the line breaks of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return "\n".join(indent + line for line in text.splitlines())
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts options before, between and after optional positionals.

    Plain argparse treats an optional positional as missing when an option comes first. A parser
    with subcommands leaves this to the parsers of the subcommands, which are of this class too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(*args, **kwargs)
        self._is_intermixed = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
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

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            close = _closest(str(value), list(map(str, action.choices or ())))
            if close:
                error.message += f"; did you mean {close}?"
            raise

    def error(self, message: str) -> NoReturn:
        if self._subparsers is not None and message.startswith(_MISSING):
            self.print_help(sys.stderr)
            self.exit(ExitCode.USAGE, f"\n{self.prog}: choose one of the actions above\n")
        unknown = re.fullmatch(r"unrecognized arguments: (--\w\S*).*", message, re.DOTALL)
        close = _closest(unknown[1].partition("=")[0], self._all_options()) if unknown else ""
        super().error(printable(f"{message}; did you mean {close}?" if close else message))

    def _all_options(self) -> list[str]:
        """The long options of the parser and of the actions below it."""
        found = [each for each in self._option_string_actions if each.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    found += parser._option_string_actions
        return found


def _closest(word: str, known: Sequence[str]) -> str:
    """The known word that is probably meant; empty if none is similar."""
    from difflib import get_close_matches

    for meant, words in _SYNONYMS.items():
        if meant in known and word in words.split():
            return meant
    return next(iter(get_close_matches(word, known, 1)), "")


def main() -> None:
    """Run the command line and exit with the exit code of the command."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    words = _options_last(words)
    first, rest = (words[0], list(words[1:])) if words else ("", [])
    if first == "help" and rest[:1]:
        first, rest = rest[0], ["--help"]
    if first in ("-h", "--help", "help"):
        return run_until_pipe_closes(_help)
    if first in ("-V", "--version"):
        first = "version"
    if first not in COMMANDS:
        return _unknown_command(first)
    arguments = argparse.Namespace()
    try:
        arguments = parser_for(first).parse_args(rest)
        return run_until_pipe_closes(lambda: int(arguments.run(arguments)))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except ModuleNotFoundError as error:
        return _report_error(_missing_package(first, error), arguments)
    except Exception as error:
        return _report_error(error, arguments)


def _options_last(words: Sequence[str]) -> list[str]:
    """Move common options before the command behind its arguments."""
    first = 0
    while first < len(words):
        name, has_value, _ = words[first].partition("=")
        if name not in _COMMON_OPTIONS:
            break
        first += 2 if name in _VALUE_OPTIONS and not has_value else 1
    options, rest = list(words[:first]), list(words[first:])
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *options, *rest[end:]] if rest else options


def parser_for(name: str) -> argparse.ArgumentParser:
    """The parser of a command; imports its module."""
    command = COMMANDS[name]
    module = import_module(command.module)
    parser = Parser(prog=f"sluice {name}", description=_sentence(command.purpose))
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    _complete_actions(parser)
    return parser


def _complete_actions(parser: argparse.ArgumentParser) -> None:
    """Give each action below a command its description, and its part of the command's examples."""
    for group in parser._actions:
        if not isinstance(group, argparse._SubParsersAction):
            continue
        for choice in group._choices_actions:
            action: argparse.ArgumentParser = group.choices[choice.dest]
            action.description = action.description or _sentence(choice.help or "")
            prefix = f"  {parser.prog} {choice.dest}"
            lines = [line for line in (parser.epilog or "").splitlines() if line.startswith(prefix)]
            if lines and action.epilog is None:
                action.epilog = "\n".join([_EXAMPLES, *lines])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _missing_package(command: str, error: ModuleNotFoundError) -> Exception:
    """The error to report for a module that could not be imported."""
    package = (error.name or "").partition(".")[0]
    if package == _OWN_PACKAGE:
        return error
    return MissingRequirement(
        f"`sluice {command}` needs the package {package}: pip install '{SERVER_EXTRA}'"
    )


def _report_error(error: Exception, arguments: argparse.Namespace) -> int:
    """Print an expected error on one line and return its exit code; raise any other error."""
    if isinstance(error, OSError):  # a file; network errors are SluiceErrors
        code: int = ExitCode.IO_ERROR
    elif isinstance(error, SluiceError):
        code = error.exit_code
    else:
        raise error
    if sys.stderr is not None:
        print(printable(f"sluice: {error}"), file=sys.stderr, flush=True)
        if isinstance(error, NotFound) and error.code == "job_not_found":
            _explain_short_ids(arguments)
    return code


def _explain_short_ids(arguments: argparse.Namespace) -> None:
    given = [*getattr(arguments, "job_ids", []), getattr(arguments, "job_id", "")]
    for word in given:
        if re.fullmatch(r"[0-9a-f][0-9a-f-]+", word) and len(word) < _JOB_ID_CHARS:
            print(f"job ids must be complete; search: sluice ls -s {word} --ids", file=sys.stderr)


def _help(stream: TextIO | None = None) -> int:
    lines = [_USAGE]
    width = max(map(len, COMMANDS))
    for title, commands in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:{width}}  {command.purpose}" for name, command in commands.items()]
    print(*lines, _MORE, sep="\n", file=stream)
    return ExitCode.OK


def _unknown_command(word: str) -> int:
    if not word:
        _help(sys.stderr)
        return ExitCode.USAGE
    close = _closest(word, list(COMMANDS))
    hint = f"did you mean `sluice {close}`?" if close else "`sluice --help` lists all commands"
    print(printable(f"sluice: unknown command {word!r}; {hint}"), file=sys.stderr)
    return ExitCode.USAGE
