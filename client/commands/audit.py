"""`sluice audit`: have the gateway check all jobs, and name those of which a promise was broken."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from client.commands.gateway_options import add_gateway, connect
from client.errors import Broken, Misconfigured, SluiceError, Unreachable
from client.exits import Exit
from client.terminal.progress import Progress
from client.terminal.text import as_json, plural, printable

CLEAN, VIOLATIONS = Exit.OK, Exit.FAILED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Checks that every job has exactly one end and none is lost. Exit code 0: all is well; 1: "
        "violations were found; 5, 7: no audit was made, or one is running already."
    )
    add_gateway(parser)
    parser.add_argument(
        "--local",
        action="store_true",
        help="audit straight on Redis, for where the gateway is down or may not read the queue",
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="the Redis for --local (default: REDIS_URL, or the one of this box)",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    progress = Progress()
    telling = _Table(progress) if arguments.output == "table" else _Json(progress)
    try:
        if arguments.local or arguments.redis is not None:
            _local(arguments.redis, telling.take)
        else:
            connect(arguments).audit(telling.take)
        return telling.code()
    finally:
        progress.clear()


class _Table:
    """A line for each violation, as it comes, and one for all."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._shown = 0
        self._violations: int | None = None

    def take(self, line: dict[str, Any]) -> None:
        """What the audit says."""
        kind = line["type"]
        if kind == "progress":
            self._progress.show(f"{plural(line.get('jobs_checked', 0), 'job')} checked")
        elif kind == "violation":
            self.violation(line)
        elif kind == "report":
            self._progress.clear()
            self._violations = line["violations_total"]
            self.report(line)

    def violation(self, line: dict[str, Any]) -> None:
        """Name a job."""
        self._progress.clear()
        if not self._shown:
            print(_row("JOB", "RULE", "DETAIL"))
        print(_row(line["job_id"], line["rule"], line.get("detail", "")), flush=True)
        self._shown += 1

    def report(self, line: dict[str, Any]) -> None:
        """Sum it up."""
        more = line["violations_total"] - self._shown
        if more > 0:
            print(f"and {more} more")
        print(_summary(line), flush=True)

    def code(self) -> int:
        """How the command ends."""
        if self._violations is None:
            raise Broken("the audit was broken off; try again")
        return VIOLATIONS if self._violations else CLEAN


class _Json(_Table):
    """All of it as one object, at the end."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._found: list[dict[str, Any]] = []

    def violation(self, line: dict[str, Any]) -> None:
        """Keep it for the end."""
        self._found.append(_untyped(line))

    def report(self, line: dict[str, Any]) -> None:
        """Everything that was found."""
        print(as_json({**_untyped(line), "violations": self._found}, indent=2), flush=True)


def _untyped(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "type"}


def _summary(report: dict[str, Any]) -> str:
    total = report["violations_total"]
    found = plural(total, "violation") if total else "no violation"
    seconds = report["duration_ms"] / 1000
    part = "" if report.get("complete", True) else " (the queue is too long to be looked at whole)"
    return f"{plural(report['jobs_checked'], 'job')} checked in {seconds:.1f} s: {found}{part}"


def _row(job_id: str, rule: str, detail: str) -> str:
    return printable(f"{job_id:36}  {rule:24}  {detail}")


def _local(redis: str | None, tell: Callable[[dict[str, Any]], None]) -> None:
    """The same, without a gateway."""
    from ops import audit as local_audit

    def warn(text: str) -> None:
        print(printable(f"sluice: {text}"), file=sys.stderr)

    try:
        for line in local_audit.lines(redis, warn):
            tell(line)
    except local_audit.NoLocalAudit as error:
        misconfigured = error.code == Exit.MISCONFIGURED
        kind: type[SluiceError] = Misconfigured if misconfigured else Unreachable
        raise kind(str(error)) from None
