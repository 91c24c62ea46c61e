"""The `now` and `date_math` tools: what time it is, and what day it will be."""

from __future__ import annotations

import calendar
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from worker.features.tools.builtin.arguments import Arguments, ToolInputError
from worker.features.tools.tool import Call

LONGEST_ZONE = 64
#: Most units of a kind that can be added; a date has four digits for its year.
MOST_UNITS = 10_000_000


class NowArguments(Arguments):
    """What `now` takes."""

    timezone: str = Field(
        "UTC",
        min_length=1,
        max_length=LONGEST_ZONE,
        description="Name of a time zone, such as Europe/Paris.",
    )


class Span(Arguments):
    """A length of time, forward or, with negative numbers, back."""

    years: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    months: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    weeks: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    days: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    hours: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    minutes: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    seconds: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)


class DateMathArguments(Arguments):
    """What `date_math` takes: a start, and either what to add or an end."""

    start: str = Field(
        max_length=64, description="ISO 8601 date or time, such as 2026-03-01, or today or now."
    )
    add: Span | None = Field(None, description="What to add to the start.")
    end: str | None = Field(None, max_length=64, description="Instead: how far is it from start?")

    @model_validator(mode="after")
    def _one_of_two(self) -> DateMathArguments:
        if (self.add is None) == (self.end is None):
            raise ValueError("give either add or end")
        return self


async def now(call: Call, arguments: NowArguments) -> dict[str, Any]:
    """Tells the date and time of now, in UTC or another time zone."""
    moment = datetime.now(_zone(arguments.timezone))
    return {
        "iso": moment.isoformat(timespec="seconds"),
        "date": moment.date().isoformat(),
        "weekday": calendar.day_name[moment.weekday()],
        "unix_s": int(moment.timestamp()),
        "timezone": arguments.timezone,
    }


async def date_math(call: Call, arguments: DateMathArguments) -> dict[str, Any]:
    """Adds a length of time to a date, or tells how far two dates are apart. Zones are kept."""
    start = _moment(arguments.start)
    try:
        if arguments.add is not None:
            return _describe(_add(start, arguments.add))
        return _between(start, _moment(arguments.end or ""))
    except (OverflowError, ValueError):
        raise ToolInputError("the result is no date between the years 1 and 9999") from None


def _add(start: date, span: Span) -> date:
    if not isinstance(start, datetime) and (span.hours or span.minutes or span.seconds):
        start = datetime.combine(start, time())
    months = start.year * 12 + start.month - 1 + span.years * 12 + span.months
    year, month = divmod(months, 12)
    if not 1 <= year <= 9999:
        raise OverflowError
    # The 31st of a shorter month is its last day.
    day = min(start.day, calendar.monthrange(year, month + 1)[1])
    moved = start.replace(year=year, month=month + 1, day=day)
    return moved + timedelta(
        weeks=span.weeks,
        days=span.days,
        hours=span.hours,
        minutes=span.minutes,
        seconds=span.seconds,
    )


def _between(start: date, end: date) -> dict[str, Any]:
    if isinstance(start, datetime) or isinstance(end, datetime):
        start, end = _at_midnight(start), _at_midnight(end)
        if (start.tzinfo is None) != (end.tzinfo is None):
            raise ToolInputError("one of the times has a zone and the other has none")
    apart = end - start
    seconds = apart.total_seconds()
    return {
        "days": seconds / 86_400 if seconds % 86_400 else apart.days,
        "seconds": int(seconds),
        "weeks": round(seconds / 604_800, 3),
    }


def _describe(moment: date) -> dict[str, Any]:
    return {"iso": moment.isoformat(), "weekday": calendar.day_name[moment.weekday()]}


def _moment(text: str) -> date:
    text = text.strip()
    if text.lower() == "now":
        return datetime.now(timezone.utc).replace(microsecond=0)
    if text.lower() == "today":
        return datetime.now(timezone.utc).date()
    try:
        if len(text) == len("2026-03-01"):
            return date.fromisoformat(text)
        # Python 3.10 does not know Z.
        return datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "zZ" else text)
    except ValueError:
        raise ToolInputError(
            f"{text!r} is no ISO 8601 date, such as 2026-03-01T12:00:00Z"
        ) from None


def _at_midnight(moment: date) -> datetime:
    return moment if isinstance(moment, datetime) else datetime.combine(moment, time())


def _zone(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, no path at all, a directory
        raise ToolInputError(
            f"there is no time zone {name!r}; write one such as Europe/Paris"
        ) from None
