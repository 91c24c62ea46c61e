"""`sluice audit`: check the integrity of all jobs and print violations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import Broken, ExitCode, Misconfigured, SluiceError, Unreachable
from sluice.terminal.console import JSON, TABLE, add_format_option
from sluice.terminal.screen import Progress
from sluice.terminal.text import as_json, count_of, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check the integrity of all jobs: every job has exactly one end and none is lost. Exit "
        "code 0: no violations; 1: violations found; 5, 7: the check did not run, or another one "
        "is running."
    )
    parser.epilog = """Examples:
  sluice audit
  sluice audit -o json
  sudo sluice audit --local"""
    add_gateway_option(parser)
    parser.add_argument(
        "--local",
        action="store_true",
        help="read Redis directly, for when the gateway is down or may not read the queue",
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="Redis for --local (default: REDIS_URL, or the Redis of this host)",
    )
    add_format_option(parser, TABLE, JSON)


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    progress = Progress()
    printer = _TablePrinter(progress) if arguments.output == "table" else _JsonPrinter(progress)
    try:
        if arguments.local or arguments.redis is not None:
            _run_local(arguments.redis, printer.handle)
        else:
            connect(arguments).audit(printer.handle)
        return printer.exit_code()
    finally:
        progress.clear()


class _TablePrinter:
    """Prints a line for each violation as it is found, and a summary."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._printed = 0
        self._violations: int | None = None

    def handle(self, line: dict[str, Any]) -> None:
        """Process one line of the audit."""
        kind = line["type"]
        if kind == "progress":
            self._progress.show(f"{count_of(line.get('jobs_checked', 0), 'job')} checked")
        elif kind == "violation":
            self.print_violation(line)
        elif kind == "report":
            self._progress.clear()
            self._violations = line["violations_total"]
            self.print_report(line)

    def print_violation(self, line: dict[str, Any]) -> None:
        self._progress.clear()
        if not self._printed:
            print(_row("JOB", "RULE", "DETAIL"))
        print(_row(line["job_id"], line["rule"], line.get("detail", "")), flush=True)
        self._printed += 1

    def print_report(self, line: dict[str, Any]) -> None:
        more = line["violations_total"] - self._printed
        if more > 0:
            print(f"and {more} more")
        print(_summary(line), flush=True)

    def exit_code(self) -> int:
        """The exit code of the command; raises Broken if there was no report."""
        if self._violations is None:
            raise Broken("the audit ended without a report; try again")
        return ExitCode.FAILED if self._violations else ExitCode.OK


class _JsonPrinter(_TablePrinter):
    """Prints everything as one JSON object at the end."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._violation_lines: list[dict[str, Any]] = []

    def print_violation(self, line: dict[str, Any]) -> None:
        self._violation_lines.append(_without_type(line))

    def print_report(self, line: dict[str, Any]) -> None:
        print(
            as_json({**_without_type(line), "violations": self._violation_lines}, indent=2),
            flush=True,
        )


def _without_type(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "type"}


def _summary(report: dict[str, Any]) -> str:
    total = report["violations_total"]
    found = count_of(total, "violation") if total else "no violation"
    seconds = report["duration_ms"] / 1000
    part = (
        ""
        if report.get("complete", True)
        else " (incomplete: the queue is too long to be checked as a whole)"
    )
    return f"{count_of(report['jobs_checked'], 'job')} checked in {seconds:.1f} s: {found}{part}"


def _row(job_id: str, rule: str, detail: str) -> str:
    return printable(f"{job_id:36}  {rule:24}  {detail}")


def _run_local(redis: str | None, handle: Callable[[dict[str, Any]], None]) -> None:
    """Run the integrity check in this process, without a gateway."""
    from sluice.ops import audit as local_audit

    def warn(text: str) -> None:
        print(printable(f"sluice: {text}"), file=sys.stderr)

    try:
        for line in local_audit.audit_lines(redis, warn):
            handle(line)
    except local_audit.LocalAuditError as error:
        misconfigured = error.code == ExitCode.MISCONFIGURED
        kind: type[SluiceError] = Misconfigured if misconfigured else Unreachable
        raise kind(str(error)) from None
