"""Options and argument types shared by commands: gateway, durations, numbers, payloads."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import ExitCode, SluiceError
from sluice.terminal.console import Console

if TYPE_CHECKING:
    from sluice import Sluice

#: Retries of interactive commands: about a second while a gateway restarts.
RETRIES = 2
#: Retries of requests that must not get lost, such as submissions.
PERSISTENT_RETRIES = 6
TASKS = ("chat", "plan", "code", "tool", "rag", "embed")
STATUSES = ("queued", "running", "done", "error", "canceled")
STDIN = "-"
#: Rows of a listing without -n.
DEFAULT_LIMIT = 50
#: The payload member that plain text is stored in, by task.
_MAIN_MEMBER = {"chat": "text", "plan": "goal", "code": "prompt", "embed": "input", "rag": "query"}
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ].+", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s?(ms|s|m|min|h|d|)", re.ASCII)


class UsageError(SluiceError):
    """An argument or a file is invalid."""

    exit_code = ExitCode.USAGE


def add_gateway_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        help="URL of the gateway (default: SLUICE_URL, else HOST and PORT of this environment)",
    )


def add_limit_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "-n",
        "--limit",
        type=positive_int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of rows (default: {DEFAULT_LIMIT})",
    )


def connect(arguments: argparse.Namespace, *, retries: int = RETRIES) -> Sluice:
    """A client for the gateway. Imported late, to keep --help quick."""
    from sluice import Sluice

    return Sluice(arguments.url, retries=retries)


def run_action(arguments: argparse.Namespace, *, retries: int = RETRIES) -> int:
    """Call `arguments.work` with a console, a client and the arguments."""
    console, sluice = Console.from_arguments(arguments), connect(arguments, retries=retries)
    work: Callable[[Console, Sluice, argparse.Namespace], int] = arguments.work
    return work(console, sluice, arguments)


def seconds(text: str) -> float:
    """An argument such as `90`, `90s`, `10m`, `2h`, `7d` or `250ms`, in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration (try 90s, 10m, 2h or 7d)")
    return float(match[1]) * _UNITS_S[match[2]]


def point_in_time(text: str) -> str:
    """Converts `10m` (ago) to Unix milliseconds; the gateway reads milliseconds and RFC 3339."""
    text = text.strip()
    if text.isdigit() or _DATE_TIME.fullmatch(text):
        return text
    if _DURATION.fullmatch(text):
        return str(int((time.time() - seconds(text)) * 1000))
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a time (try 10m, 2h or 7d for a time ago, or 2030-01-31T08:00:00Z)"
    )


def positive_int(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def read_payload(task: str, given: str | None, file: str | None) -> dict[str, Any]:
    """The payload from an argument or a file: a JSON object, or text for the task's main member."""
    if given is not None and file is not None:
        raise UsageError("pass either a payload or -f, not both")
    if given == STDIN:
        given, file = None, STDIN
    if file is not None:
        source, text = _file_name(file), read_text(file)
    elif given is not None:
        source, text = "the payload", given
    else:
        raise UsageError("no payload: pass a JSON object or text, -f FILE, or - for stdin")
    if not text.lstrip().startswith("{"):
        member = _MAIN_MEMBER.get(task)
        if member is None:
            raise UsageError(
                f"{source} is not a JSON object; the task {task} does not accept plain text"
            )
        return {member: text.rstrip("\n") if file is not None else text}
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not valid JSON: {error}") from None
    return value


def read_text(file: str) -> str:
    """Read a file or stdin as UTF-8; raises UsageError or OSError."""
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{_file_name(file)} is not UTF-8 text") from None


def read_bytes(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()


def _file_name(file: str) -> str:
    return "stdin" if file == STDIN else file
