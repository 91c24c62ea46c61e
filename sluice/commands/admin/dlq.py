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
_NOTHING_DONE = "sluice: nothing done; use -y to skip the confirmation"


def _task(dead_letter: Row) -> object:
    fields = dead_letter.get("fields")
    return fields.get("task") if isinstance(fields, Mapping) else None


DEAD_LETTER_COLUMNS = (
    Column("ID", lambda row: row.get("id")),
    Column("JOB", lambda row: row.get("job_id")),
    Column("TASK", _task),
    Column("REASON", lambda row: row.get("reason")),
    Column("ATTEMPTS", lambda row: row.get("attempts"), right=True),
    Column("FAILED", lambda row: format_ago(row.get("ts")), right=True),
    Column("ERROR", lambda row: describe_error(row.get("last_error"))),
)
GROUP_COLUMNS = (
    Column("GROUP", lambda row: row.get("fingerprint")),
    Column("COUNT", lambda row: row.get("count"), right=True),
    Column("TASK", lambda row: row.get("task")),
    Column("REASON", lambda row: row.get("reason")),
    Column("NEWEST", lambda row: format_ago(row.get("newest_ts")), right=True),
    Column("ERROR", lambda row: f"{row.get('kind') or ''}: {row.get('message') or ''}".strip(": ")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice dlq groups
  sluice dlq ls --reason attempts_exhausted
  sluice dlq show 1760000000000-0
  sluice dlq redrive --group 3f9a1c --rate 5 --dry-run
  sluice dlq purge --reason attempts_exhausted -y"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    groups = actions.add_parser(
        "groups", help="group dead letters by kind of failure, largest group first"
    )
    groups.set_defaults(work=_groups)
    list_ = actions.add_parser("ls", help="list dead letters, newest first")
    list_.add_argument("--reason", help="filter by reason")
    list_.add_argument("--group", metavar="GROUP", help="filter by group")
    add_limit_option(list_)
    list_.set_defaults(work=_list)
    show = actions.add_parser("show", help="show one dead letter with all its fields")
    show.add_argument("dead_letter_id", metavar="ID")
    show.set_defaults(work=_show)
    redrive = actions.add_parser("redrive", help="re-enqueue dead letters as new jobs")
    _add_selection(redrive)
    redrive.add_argument("--rate", type=float, metavar="N", help="jobs per second (default: 10)")
    most = "maximum number of jobs (default: 100)"
    redrive.add_argument("-n", "--limit", type=positive_int, metavar="N", help=most)
    redrive.add_argument(
        "--dry-run", action="store_true", help="print what would be done, without doing it"
    )
    redrive.set_defaults(work=_redrive)
    purge = actions.add_parser("purge", help="delete dead letters")
    _add_selection(purge)
    purge.set_defaults(work=_purge)
    for action in actions.choices.values():
        add_gateway_option(action)
        add_output_options(action)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dead_letter_ids", nargs="*", metavar="ID")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--group", metavar="GROUP", help="all dead letters of this group")
    choice.add_argument("--reason", help="all dead letters with this reason")
    choice.add_argument("--all", action="store_true", help="all dead letters")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    if arguments.action in ("redrive", "purge"):
        given = (arguments.dead_letter_ids, arguments.group, arguments.reason, arguments.all)
        if sum(map(bool, given)) != 1:
            console.error("sluice: pass dead letter ids, or one of --group, --reason and --all")
            return ExitCode.USAGE
    return run_action(arguments)


def _groups(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    found = sluice.dead_letter_groups()
    console.print_rows(GROUP_COLUMNS, [dict(each.raw) for each in found.groups], "no dead letters")
    if console.is_table and not found.complete:
        total = count_of(found.total, "dead letter")
        console.info(f"only the newest {found.looked_at} of {total} are counted")
    return ExitCode.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    dead_letters = sluice.dead_letters(reason=arguments.reason, fingerprint=arguments.group)
    rows = (dict(each.raw) for each in islice(dead_letters, arguments.limit))
    console.print_rows(DEAD_LETTER_COLUMNS, rows, "no dead letters")
    return ExitCode.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    raw = sluice.dead_letter(arguments.dead_letter_id).raw
    pairs: list[tuple[str, object]] = [
        ("id", raw.get("id")),
        ("job", raw.get("job_id")),
        ("reason", raw.get("reason")),
        ("failed", format_time(raw.get("ts"))),
        ("attempts", raw.get("attempts")),
        ("first error", preview(raw.get("first_error"))),
        ("last error", preview(raw.get("last_error"))),
        ("message", preview(raw.get("fields"))),
    ]
    console.print_details(pairs, dict(raw))
    return ExitCode.OK


def _describe_selection(arguments: argparse.Namespace) -> str:
    if arguments.dead_letter_ids:
        return count_of(len(arguments.dead_letter_ids), "dead letter")
    if arguments.all:
        return "all dead letters"
    of = f"group {arguments.group}" if arguments.group else f"reason {arguments.reason}"
    return f"the dead letters of {of}"


def _redrive(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    many = not arguments.dead_letter_ids and not arguments.dry_run
    question = f"redrive {_describe_selection(arguments)}?"
    if many and not console.confirm(question, arguments.yes):
        return console.declined(_NOTHING_DONE)
    report = sluice.redrive(
        arguments.dead_letter_ids or None,
        reason=arguments.reason,
        fingerprint=arguments.group,
        everything=arguments.all,
        limit=arguments.limit,
        rate_per_s=arguments.rate,
        dry_run=arguments.dry_run,
    )
    redriven, skipped = report.redriven, report.skipped
    columns = (
        Column("DEAD LETTER", lambda row: row.get("dead_letter_id")),
        Column("NEW JOB", lambda row: row.get("job_id")),
        Column("STARTS IN", lambda row: f"{(row.get('delay_ms') or 0) / 1000:.1f} s", right=True),
    )
    if console.is_table:
        if redriven:
            console.print_rows(columns, redriven)
        done = "to redrive" if arguments.dry_run else "redriven"
        console.info(f"{count_of(len(redriven), 'dead letter')} {done}, {len(skipped)} skipped")
        for each in skipped:
            console.error(f"skipped {each.get('dead_letter_id')}: {each.get('code')}")
    else:
        console.print_json(dict(report.raw))
    return ExitCode.FAILED if skipped else ExitCode.OK


def _purge(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if not console.confirm(f"permanently delete {_describe_selection(arguments)}?", arguments.yes):
        return console.declined(_NOTHING_DONE)
    purged = sum(map(sluice.purge, arguments.dead_letter_ids))
    if not arguments.dead_letter_ids:
        purged = sluice.purge(
            reason=arguments.reason, fingerprint=arguments.group, everything=arguments.all
        )
    console.print_value(f"{count_of(purged, 'dead letter')} deleted", {"purged": purged})
    return ExitCode.OK
