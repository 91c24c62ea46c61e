"""`sluice dlq`: what was given up, by how it failed; and once more, or no more."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.get import glance
from client.commands.words import natural
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import ago, clock, plural

if TYPE_CHECKING:
    from client import Sluice

USUAL = 50
Row = Mapping[str, Any]


def _error(letter: Row) -> str:
    error = letter.get("last_error")
    if isinstance(error, Mapping):
        return f"{error.get('kind', '')}: {error.get('message', '')}"
    return glance(error)


def _task(letter: Row) -> object:
    fields = letter.get("fields")
    return fields.get("task") if isinstance(fields, Mapping) else None


LETTER_COLUMNS = (
    Column("LETTER", lambda row: row.get("id")),
    Column("JOB", lambda row: row.get("job_id")),
    Column("TASK", _task),
    Column("REASON", lambda row: row.get("reason")),
    Column("TRIES", lambda row: row.get("attempts"), right=True),
    Column("WHEN", lambda row: ago(row.get("ts")), right=True),
    Column("ERROR", _error),
)
GROUP_COLUMNS = (
    Column("GROUP", lambda row: row.get("fingerprint")),
    Column("LETTERS", lambda row: row.get("count"), right=True),
    Column("TASK", lambda row: row.get("task")),
    Column("REASON", lambda row: row.get("reason")),
    Column("NEWEST", lambda row: ago(row.get("newest_ts")), right=True),
    Column("ERROR", lambda row: f"{row.get('kind') or ''}: {row.get('message') or ''}".strip(": ")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    grouping = actions.add_parser("groups", help="how many failed alike, the largest group first")
    grouping.set_defaults(work=_groups)
    listing = actions.add_parser("ls", help="letters, the newest first")
    listing.add_argument("--reason", help="only those put aside for this reason")
    listing.add_argument("--group", metavar="GROUP", help="only those of this group")
    listing.add_argument("-n", "--limit", type=natural, default=USUAL, metavar="N")
    listing.set_defaults(work=_list)
    showing = actions.add_parser("show", help="one letter, whole")
    showing.add_argument("letter", metavar="LETTER")
    showing.set_defaults(work=_show)
    redriving = actions.add_parser("redrive", help="make jobs of them again")
    _add_choice(redriving)
    redriving.add_argument("--rate", type=float, metavar="N", help="jobs a second (10)")
    redriving.add_argument("-n", "--limit", type=natural, metavar="N", help="at most so many (100)")
    redriving.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    redriving.set_defaults(work=_redrive)
    purging = actions.add_parser("purge", help="forget them, for good")
    _add_choice(purging)
    purging.set_defaults(work=_purge)
    for action in actions.choices.values():
        add_gateway(action)
        add_output(action)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("letters", nargs="*", metavar="LETTER")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--group", metavar="GROUP", help="all of this group")
    choice.add_argument("--reason", help="all that were put aside for this reason")
    choice.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.of(arguments)
    if arguments.action in ("redrive", "purge"):
        given = (arguments.letters, arguments.group, arguments.reason, arguments.all)
        if sum(map(bool, given)) != 1:
            console.complain("sluice: name letters, or give one of --group, --reason and --all")
            return Exit.USAGE
    code: int = arguments.work(console, connect(arguments), arguments)
    return code


def _groups(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    told = sluice.dead_letter_groups()
    console.listing(GROUP_COLUMNS, [dict(each.raw) for each in told.groups], "no dead letters")
    if console.for_people and not told.complete:
        console.say(f"of {told.total} letters, the newest {told.looked_at} are counted")
    return Exit.OK


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    letters = sluice.dead_letters(reason=arguments.reason, fingerprint=arguments.group)
    rows = (dict(letter.raw) for letter in islice(letters, arguments.limit))
    console.listing(LETTER_COLUMNS, rows, "no dead letters")
    return Exit.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    letter = sluice.dead_letter(arguments.letter).raw
    pairs: list[tuple[str, object]] = [
        ("letter", letter.get("id")),
        ("job", letter.get("job_id")),
        ("reason", letter.get("reason")),
        ("when", clock(letter.get("ts"))),
        ("attempts", letter.get("attempts")),
        ("first error", glance(letter.get("first_error"))),
        ("last error", glance(letter.get("last_error"))),
        ("message", glance(letter.get("fields"))),
    ]
    console.facts(pairs, dict(letter))
    return Exit.OK


def _which(arguments: argparse.Namespace) -> str:
    if arguments.letters:
        return plural(len(arguments.letters), "dead letter")
    if arguments.all:
        return "all dead letters"
    of = f"group {arguments.group}" if arguments.group else f"reason {arguments.reason}"
    return f"the dead letters of {of}"


def _redrive(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    many = not arguments.letters and not arguments.dry_run
    if many and not console.confirm(f"make jobs of {_which(arguments)}?", arguments.yes):
        return _refused(console)
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
    if console.for_people:
        if redriven:
            console.listing(columns, redriven)
        would = "would become jobs" if arguments.dry_run else "are jobs again"
        console.say(f"{plural(len(redriven), 'letter')} {would}, {len(skipped)} skipped")
        for each in skipped:
            console.complain(f"skipped {each.get('dead_letter_id')}: {each.get('code')}")
    else:
        console.json(dict(report.raw))
    return Exit.FAILED if skipped else Exit.OK


def _purge(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if not console.confirm(f"forget {_which(arguments)} for good?", arguments.yes):
        return _refused(console)
    purged = sum(map(sluice.purge, arguments.letters))
    if not arguments.letters:
        purged = sluice.purge(
            reason=arguments.reason, fingerprint=arguments.group, everything=arguments.all
        )
    if console.for_people:
        console.line(f"{plural(purged, 'letter')} forgotten")
    else:
        console.json({"purged": purged})
    return Exit.OK


def _refused(console: Console) -> int:
    console.complain("sluice: nothing was done; -y does it without asking")
    return Exit.FAILED if console.can_ask else Exit.USAGE
