"""`sluice dlq`: list, redrive and purge dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import add_gateway_option, add_limit_option, positive_int, run_action
from sluice.commands.jobs.get import describe_error, preview
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of, format_ago, format_time

if TYPE_CHECKING:
    from sluice import Sluice

Row = Mapping[str, Any]
_NOTHING_DONE = "sluice: nothing was done; -y does it without asking"


def _task(letter: Row) -> object:
    fields = letter.get("fields")
    return fields.get("task") if isinstance(fields, Mapping) else None


LETTER_COLUMNS = (
    Column("LETTER", lambda row: row.get("id")),
    Column("JOB", lambda row: row.get("job_id")),
    Column("TASK", _task),
    Column("REASON", lambda row: row.get("reason")),
    Column("TRIES", lambda row: row.get("attempts"), right=True),
    Column("WHEN", lambda row: format_ago(row.get("ts")), right=True),
    Column("ERROR", lambda row: describe_error(row.get("last_error"))),
)
GROUP_COLUMNS = (
    Column("GROUP", lambda row: row.get("fingerprint")),
    Column("LETTERS", lambda row: row.get("count"), right=True),
    Column("TASK", lambda row: row.get("task")),
    Column("REASON", lambda row: row.get("reason")),
    Column("NEWEST", lambda row: format_ago(row.get("newest_ts")), right=True),
    Column("ERROR", lambda row: f"{row.get('kind') or ''}: {row.get('message') or ''}".strip(": ")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    groups = actions.add_parser("groups", help="by kind of failure, the largest group first")
    groups.set_defaults(work=_groups)
    list_ = actions.add_parser("ls", help="dead letters, newest first")
    list_.add_argument("--reason", help="only those with this reason")
    list_.add_argument("--group", metavar="GROUP", help="only those of this group")
    add_limit_option(list_)
    list_.set_defaults(work=_list)
    show = actions.add_parser("show", help="one dead letter with all its fields")
    show.add_argument("letter", metavar="LETTER")
    show.set_defaults(work=_show)
    redrive = actions.add_parser("redrive", help="make new jobs of dead letters")
    _add_selection(redrive)
    redrive.add_argument("--rate", type=float, metavar="N", help="jobs a second (10)")
    most = "at most so many (100)"
    redrive.add_argument("-n", "--limit", type=positive_int, metavar="N", help=most)
    redrive.add_argument("--dry-run", action="store_true", help="only print what would be done")
    redrive.set_defaults(work=_redrive)
    purge = actions.add_parser("purge", help="delete dead letters")
    _add_selection(purge)
    purge.set_defaults(work=_purge)
    for action in actions.choices.values():
        add_gateway_option(action)
        add_output_options(action)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("letters", nargs="*", metavar="LETTER")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--group", metavar="GROUP", help="all of this group")
    choice.add_argument("--reason", help="all with this reason")
    choice.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.from_arguments(arguments)
    if arguments.action in ("redrive", "purge"):
        given = (arguments.letters, arguments.group, arguments.reason, arguments.all)
        if sum(map(bool, given)) != 1:
            console.error("sluice: name letters, or give one of --group, --reason and --all")
            return ExitCode.USAGE
    return run_action(arguments)


def _groups(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    found = sluice.dead_letter_groups()
    console.print_rows(GROUP_COLUMNS, [dict(each.raw) for each in found.groups], "no dead letters")
    if console.is_table and not found.complete:
        letters = count_of(found.total, "letter")
        console.info(f"of {letters}, the newest {found.looked_at} are counted")
    return ExitCode.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    letters = sluice.dead_letters(reason=arguments.reason, fingerprint=arguments.group)
    rows = (dict(letter.raw) for letter in islice(letters, arguments.limit))
    console.print_rows(LETTER_COLUMNS, rows, "no dead letters")
    return ExitCode.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    letter = sluice.dead_letter(arguments.letter).raw
    pairs: list[tuple[str, object]] = [
        ("letter", letter.get("id")),
        ("job", letter.get("job_id")),
        ("reason", letter.get("reason")),
        ("when", format_time(letter.get("ts"))),
        ("attempts", letter.get("attempts")),
        ("first error", preview(letter.get("first_error"))),
        ("last error", preview(letter.get("last_error"))),
        ("message", preview(letter.get("fields"))),
    ]
    console.print_details(pairs, dict(letter))
    return ExitCode.OK


def _describe_selection(arguments: argparse.Namespace) -> str:
    if arguments.letters:
        return count_of(len(arguments.letters), "dead letter")
    if arguments.all:
        return "all dead letters"
    of = f"group {arguments.group}" if arguments.group else f"reason {arguments.reason}"
    return f"the dead letters of {of}"


def _redrive(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    many = not arguments.letters and not arguments.dry_run
    question = f"make jobs of {_describe_selection(arguments)}?"
    if many and not console.confirm(question, arguments.yes):
        return console.declined(_NOTHING_DONE)
    report = sluice.redrive(
        arguments.letters or None,
        reason=arguments.reason,
        fingerprint=arguments.group,
        everything=arguments.all,
        limit=arguments.limit,
        rate_per_s=arguments.rate,
        dry_run=arguments.dry_run,
    )
    redriven, skipped = report.redriven, report.skipped
    columns = (
        Column("LETTER", lambda row: row.get("dead_letter_id")),
        Column("JOB", lambda row: row.get("job_id")),
        Column("IN", lambda row: f"{(row.get('delay_ms') or 0) / 1000:.1f} s", right=True),
    )
    if console.is_table:
        if redriven:
            console.print_rows(columns, redriven)
        done = "to redrive" if arguments.dry_run else "redriven"
        console.info(f"{count_of(len(redriven), 'letter')} {done}, {len(skipped)} skipped")
        for each in skipped:
            console.error(f"skipped {each.get('dead_letter_id')}: {each.get('code')}")
    else:
        console.print_json(dict(report.raw))
    return ExitCode.FAILED if skipped else ExitCode.OK


def _purge(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if not console.confirm(f"delete {_describe_selection(arguments)} for good?", arguments.yes):
        return console.declined(_NOTHING_DONE)
    purged = sum(map(sluice.purge, arguments.letters))
    if not arguments.letters:
        purged = sluice.purge(
            reason=arguments.reason, fingerprint=arguments.group, everything=arguments.all
        )
    console.print_value(f"{count_of(purged, 'letter')} deleted", {"purged": purged})
    return ExitCode.OK
