"""Prints findings as text or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby

from sluice.common.text import plural
from sluice.ops.doctor.finding import Finding, Health
from sluice.ops.terminal import printable

NAME_WIDTH = 21
_LABEL_WIDTH = 7
_COLORS = {
    Health.OK: "32",
    Health.NOTE: "36",
    Health.WARN: "33",
    Health.FAIL: "1;31",
    Health.SKIPPED: "2",
}
#: Statuses that need an action.
PROBLEMS = (Health.WARN, Health.FAIL)


def report_lines(findings: Iterable[Finding], *, color: bool, quiet: bool) -> Iterator[str]:
    """The lines of each finding. Checks of a family skipped for the same reason share one line."""
    for (skipped, family, seen), group in groupby(findings, _group_key):
        if not skipped:
            for finding in group:
                if not quiet or finding.status in PROBLEMS:
                    yield from _paragraph(finding, color)
        elif not quiet:
            names = [finding.check for finding in group]
            name = names[0] if len(names) == 1 else f"{family}.*"
            yield _line(Health.SKIPPED, name, seen, color)


def _group_key(finding: Finding) -> tuple[bool, str, str]:
    skipped = finding.status is Health.SKIPPED
    return skipped, finding.check.partition(".")[0], finding.seen if skipped else ""


def _paragraph(finding: Finding, color: bool) -> Iterator[str]:
    yield _line(finding.status, finding.check, finding.seen, color)
    indent = " " * (_LABEL_WIDTH + NAME_WIDTH + 2)
    if finding.cause:
        yield f"{indent}why: {printable(finding.cause)}"
    if finding.fix:
        yield f"{indent}fix: {printable(finding.fix)}"


def _line(status: Health, name: str, seen: str, color: bool) -> str:
    label = f"{status.value:{_LABEL_WIDTH}}"
    if color:
        label = f"\x1b[{_COLORS[status]}m{label}\x1b[0m"
    return f"{label} {name:{NAME_WIDTH}} {printable(seen)}"


def summary(findings: Iterable[Finding]) -> str:
    """Such as `1 failure, 2 warnings, 30 ok`."""
    counts = Counter(finding.status for finding in findings)
    parts = [
        plural(counts[Health.FAIL], "failure") if counts[Health.FAIL] else "",
        plural(counts[Health.WARN], "warning") if counts[Health.WARN] else "",
        plural(counts[Health.NOTE], "note") if counts[Health.NOTE] else "",
        f"{counts[Health.OK]} ok",
        f"{counts[Health.SKIPPED]} skipped" if counts[Health.SKIPPED] else "",
    ]
    return ", ".join(filter(None, parts))


def as_json(findings: list[Finding], *, healthy: bool, redis: str | None, url: str) -> str:
    """All findings as one JSON object."""
    counts = Counter(finding.status.value for finding in findings)
    content = {
        "healthy": healthy,
        "redis": redis,
        "url": url,
        "counts": {health.value: counts[health.value] for health in Health},
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(content, indent=2)
