"""How keys, times and rates are written on the command line of `sluice key`."""

from __future__ import annotations

import argparse
import re
import time
from datetime import datetime, timezone
from typing import Any

from common.access import LONGEST_GRACE_S
from common.access_record import AccessRecord
from common.access_text import KEY_ID

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"\A([0-9]{1,9})([smhdw])\Z")
_RATE = re.compile(r"\A([0-9]{1,9}(?:\.[0-9]{1,6})?)/(s|sec|min|m|h|hour|d|day)\Z")
_PER_MIN = {"s": 60.0, "m": 1.0, "h": 1 / 60, "d": 1 / 1440}


def key_id(text: str) -> str:
    """The id of a key."""
    if not KEY_ID.match(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a key; `sluice key ls` has them")
    return text


def duration(text: str) -> float:
    """Seconds, from `90d` or `24h`."""
    match = _DURATION.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90d, 24h, 30m or 45s")
    return float(int(match[1]) * _UNITS_S[match[2]])


def grace(text: str) -> float:
    """The same, within reason."""
    seconds = 0.0 if text == "0" else duration(text)
    if seconds > LONGEST_GRACE_S:
        raise argparse.ArgumentTypeError(f"at most {LONGEST_GRACE_S // 86_400}d")
    return seconds


def rate(text: str) -> float:
    """Jobs per minute, from `60/min` or `5/s`."""
    match = _RATE.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; write 60/min, 5/s or 100/h")
    return float(match[1]) * _PER_MIN[match[2][0]]


def view(record: AccessRecord) -> dict[str, Any]:
    """A key as JSON, without its secret."""
    return {
        "key_id": record.key_id,
        "name": record.name,
        "tenant": record.tenant or None,
        "scopes": sorted(record.scopes),
        "tasks": None if record.tasks is None else sorted(record.tasks),
        "tools": None if record.tools is None else sorted(record.tools),
        "rate_per_min": record.rate_per_min,
        "burst": record.burst_or_usual if record.rate_per_min is not None else None,
        "max_jobs": record.max_jobs,
        "created_ts": record.created_ms,
        "expires_ts": record.expires_ms,
    }


def limits(record: AccessRecord) -> str:
    """What a key may ask for at most, in few words."""
    parts = []
    if record.rate_per_min is not None:
        parts.append(f"{record.rate_per_min:g}/min burst {record.burst_or_usual}")
    if record.max_jobs is not None:
        parts.append(f"{record.max_jobs} jobs")
    if record.tasks is not None:
        parts.append("+".join(sorted(record.tasks)))
    if record.tools is not None:
        parts.append(f"tools {'+'.join(sorted(record.tools)) or 'none'}")
    return ", ".join(parts) or "-"


def day(ms: int | None) -> str:
    """A point in time, to the minute."""
    if ms is None:
        return "-"
    try:
        when = datetime.fromtimestamp(ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "?"
    return f"{when:%Y-%m-%d %H:%M}Z"


def end(ms: int | None) -> str:
    """The same for the end of a key, and whether it has come."""
    return f"{day(ms)} (over)" if ms is not None and ms < time.time() * 1000 else day(ms)
