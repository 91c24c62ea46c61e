"""What people type for times, lists of tasks and payloads, as values; for argparse's `type`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from client.errors import SluiceError
from client.exits import Exit

TASKS = ("chat", "plan", "code", "tool", "rag", "embed")
STATUSES = ("queued", "running", "done", "error", "canceled")
#: The member that plain words become, by task.
_MAIN = {"chat": "text", "plan": "goal", "code": "prompt", "embed": "input", "rag": "query"}
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s?(ms|s|m|min|h|d|)", re.ASCII)
STDIN = "-"


def duration_s(text: str) -> float:
    """Seconds of `90`, `90s`, `10m`, `2h`, `7d`, `250ms`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 10m, 2h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]


def moment(text: str) -> str:
    """A point in time as the gateway takes it: so long ago, or RFC 3339, or Unix milliseconds."""
    if _DURATION.fullmatch(text.strip()) and not text.strip().isdigit():
        return str(int((time.time() - duration_s(text)) * 1000))
    return text.strip()


def natural(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


class Unusable(SluiceError):
    """What was typed, or a file, makes no payload; the message says why."""

    exit_code = Exit.USAGE


def payload_of(task: str, given: str | None, file: str | None) -> dict[str, Any]:
    """The payload: JSON, or words for the task's main member; from a file, from stdin, as typed."""
    if given is not None and file is not None:
        raise Unusable("give the payload or -f, not both")
    if file is not None:
        source, text = ("stdin" if file == STDIN else file), _read(file)
    elif given is not None:
        source, text = "the payload", given
    else:
        raise Unusable("there is no payload: give JSON or words, or -f FILE, or -f - for stdin")
    if not text.lstrip().startswith("{"):
        member = _MAIN.get(task)
        if member is None:
            raise Unusable(f"{source} is no JSON object, and words alone are no {task} job")
        return {member: text.rstrip("\n") if file is not None else text}
    try:
        value: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{source} is no JSON: {error}") from None
    return value


def _read(file: str) -> str:
    try:
        return raw_bytes(file).decode()
    except UnicodeDecodeError:
        raise Unusable(f"{'stdin' if file == STDIN else file} is no UTF-8") from None


def raw_bytes(file: str) -> bytes:
    """All of a file, or of stdin; raises OSError."""
    return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
