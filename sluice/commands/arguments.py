"""Options that commands share: the gateway, times, numbers and payloads."""

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

#: A user waits: about a second of retries while a gateway restarts.
RETRIES = 2
#: For requests whose loss would lose work.
PERSISTENT_RETRIES = 6
TASKS = ("chat", "plan", "code", "tool", "rag", "embed")
STATUSES = ("queued", "running", "done", "error", "canceled")
STDIN = "-"
#: Rows of a listing, unless -n says otherwise.
DEFAULT_LIMIT = 50
#: The member of the payload that plain text becomes, by task.
_MAIN_MEMBER = {"chat": "text", "plan": "goal", "code": "prompt", "embed": "input", "rag": "query"}
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s?(ms|s|m|min|h|d|)", re.ASCII)


class UsageError(SluiceError):
    """An argument or a file is not usable; the message says why."""

    exit_code = ExitCode.USAGE


def add_gateway_option(parser: argparse.ArgumentParser) -> None:
    """Add --url."""
    parser.add_argument(
        "--url",
        help="the gateway (default: SLUICE_URL, else HOST and PORT as the gateway reads them)",
    )


def add_limit_option(parser: argparse._ActionsContainer) -> None:
    """Add -n."""
    parser.add_argument(
        "-n",
        "--limit",
        type=positive_int,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"at most so many ({DEFAULT_LIMIT})",
    )


def connect(arguments: argparse.Namespace, *, retries: int = RETRIES) -> Sluice:
    """A client for that gateway; imported late, so that --help is quick."""
    from sluice import Sluice

    return Sluice(arguments.url, retries=retries)


def run_action(arguments: argparse.Namespace, *, retries: int = RETRIES) -> int:
    """Run `arguments.work`, which gets a console, a client and the arguments."""
    console, sluice = Console.from_arguments(arguments), connect(arguments, retries=retries)
    work: Callable[[Console, Sluice, argparse.Namespace], int] = arguments.work
    return work(console, sluice, arguments)


def seconds(text: str) -> float:
    """An argument such as `90`, `90s`, `10m`, `2h`, `7d` or `250ms`, in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 10m, 2h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]


def point_in_time(text: str) -> str:
    """An argument such as `10m` (ago), RFC 3339 or Unix milliseconds, as the gateway reads it."""
    if _DURATION.fullmatch(text.strip()) and not text.strip().isdigit():
        return str(int((time.time() - seconds(text)) * 1000))
    return text.strip()


def positive_int(text: str) -> int:
    """An argument that is a whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def read_payload(task: str, given: str | None, file: str | None) -> dict[str, Any]:
    """The payload, given or from a file: JSON, or plain text for the task's main member."""
    if given is not None and file is not None:
        raise UsageError("give the payload or -f, not both")
    if file is not None:
        source, text = _file_name(file), read_text(file)
    elif given is not None:
        source, text = "the payload", given
    else:
        raise UsageError("there is no payload: give JSON or words, or -f FILE, or -f - for stdin")
    if not text.lstrip().startswith("{"):
        member = _MAIN_MEMBER.get(task)
        if member is None:
            raise UsageError(f"{source} is no JSON object, and words alone are no {task} job")
        return {member: text.rstrip("\n") if file is not None else text}
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is no JSON: {error}") from None
    return value


def read_text(file: str) -> str:
    """The UTF-8 text of a file, or of stdin; raises UsageError or OSError."""
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{_file_name(file)} is no UTF-8") from None


def read_bytes(file: str) -> bytes:
    """The content of a file, or of stdin; raises OSError."""
    return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()


def _file_name(file: str) -> str:
    return "stdin" if file == STDIN else file
