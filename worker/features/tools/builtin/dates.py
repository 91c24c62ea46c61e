"""The `now` and `date_math` tools."""

from __future__ import annotations

import calendar
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from sluice.worker.features.tools.builtin.arguments import Arguments, ToolInputError
from sluice.worker.features.tools.tool import Call

LONGEST_ZONE = 64
#: Largest number of units that can be added; years have at most four digits.
MOST_UNITS = 10_000_000


class NowArguments(Arguments):
    """Arguments of `now`."""

    timezone: str = Field(
        "UTC",
        min_length=1,
        max_length=LONGEST_ZONE,
        description="Name of a time zone, such as Europe/Paris.",
    )


class Span(Arguments):
    """A duration; negative numbers go back in time."""

    years: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    months: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    weeks: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    days: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    hours: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    minutes: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)
    seconds: int = Field(0, ge=-MOST_UNITS, le=MOST_UNITS)


class DateMathArguments(Arguments):
    """Arguments of `date_math`: a start, and either a duration to add or an end."""

    start: str = Field(
        max_length=64, description="ISO 8601 date or time, such as 2026-03-01, or today or now."
    )
    add: Span | None = Field(None, description="What to add to the start.")
    end: str | None = Field(
        None, max_length=64, description="Instead of `add`: the end of the interval to measure."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> DateMathArguments:
        if (self.add is None) == (self.end is None):
            raise ValueError("give either add or end")
        return self


async def now(call: Call, arguments: NowArguments) -> dict[str, Any]:
    """Returns the current date and time, in UTC or another time zone."""
    moment = datetime.now(_zone(arguments.timezone))
    return {
        "iso": moment.isoformat(timespec="seconds"),
        "date": moment.date().isoformat(),
        "weekday": calendar.day_name[moment.weekday()],
        "unix_s": int(moment.timestamp()),
        "timezone": arguments.timezone,
    }


async def date_math(call: Call, arguments: DateMathArguments) -> dict[str, Any]:
    """Adds a duration to a date, or returns the difference between two dates. Zones are kept."""
    start = _moment(arguments.start)
    try:
        if arguments.add is not None:
            return _describe(_add(start, arguments.add))
        return _between(start, _moment(arguments.end or ""))
    except (OverflowError, ValueError):
        raise ToolInputError("the result is not between the years 1 and 9999") from None


def _add(start: date, span: Span) -> date:
    if not isinstance(start, datetime) and (span.hours or span.minutes or span.seconds):
        start = datetime.combine(start, time())
    months = start.year * 12 + start.month - 1 + span.years * 12 + span.months
    year, month = divmod(months, 12)
    if not 1 <= year <= 9999:
        raise OverflowError
    # A day beyond the end of a month becomes its last day.
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
            raise ToolInputError("one of the times has a time zone and the other has not")
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
        # Python 3.10 does not accept Z.
        return datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "zZ" else text)
    except ValueError:
        raise ToolInputError(
            f"{text!r} is not an ISO 8601 date, such as 2026-03-01T12:00:00Z"
        ) from None


def _at_midnight(moment: date) -> datetime:
    return moment if isinstance(moment, datetime) else datetime.combine(moment, time())


def _zone(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, an invalid name, a directory
        raise ToolInputError(
            f"unknown time zone {name!r}; use a name such as Europe/Paris"
        ) from None
