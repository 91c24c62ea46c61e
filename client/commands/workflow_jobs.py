"""`sluice workflow`: start, list, show, review, undo and cancel workflow jobs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.get import glance
from client.commands.words import Unusable, natural, payload_of
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column

if TYPE_CHECKING:
    from client import Sluice

USUAL = 50
STATUSES = ("queued", "running", "waiting_input", "completed", "failed", "cancelled")
Row = Mapping[str, Any]
Work = Callable[[Console, "Sluice", argparse.Namespace], int]


def _share(job: Row) -> str:
    progress = job.get("progress")
    return f"{progress:.0%}" if isinstance(progress, (int, float)) else ""


JOB_COLUMNS = (
    Column("JOB", lambda row: row.get("job_id")),
    Column("WORKFLOW", lambda row: row.get("workflow")),
    Column("STATUS", lambda row: row.get("status"), status=True),
    Column("STEP", lambda row: row.get("current_step")),
    Column("DONE", _share, right=True),
    Column("CHANGED", lambda row: row.get("updated_at")),
)
ITEM_COLUMNS = (
    Column("ITEM", lambda row: row.get("id")),
    Column("TYPE", lambda row: row.get("type")),
    Column("STATUS", lambda row: row.get("status"), status=True),
    Column("CONTENT", lambda row: glance(row.get("payload"))),
)


def register(actions: Any) -> None:
    """Add the actions to those of `workflow`."""
    starting = _action(actions, "start", "start a workflow job", _start)
    starting.add_argument("workflow", nargs="?", help="its name (default: the gateway's first)")
    starting.add_argument("-f", "--file", metavar="FILE", help="the request as JSON; - for stdin")
    starting.add_argument(
        "--source", action="append", metavar="FILE", help="a text to read; may be repeated"
    )
    starting.add_argument("--step-by-step", action="store_true", help="do not go on by itself")
    starting.add_argument("--ns", metavar="NAME", help="namespace of documents")
    starting.add_argument("--key", help="Idempotency-Key: the same request is the same job")
    listing = _action(actions, "ls", "the newest first", _list)
    listing.add_argument("--status", choices=STATUSES)
    listing.add_argument("--workflow", metavar="NAME")
    listing.add_argument("-n", "--limit", type=natural, default=USUAL, metavar="N")
    _job(_action(actions, "show", "how one is", _show))
    results = _job(_action(actions, "results", "what its steps found or proposed", _results))
    results.add_argument("--step", metavar="NAME")
    results.add_argument("--status", metavar="STATUS", help="such as proposed")
    results.add_argument("-n", "--limit", type=natural, default=USUAL, metavar="N")
    for word in ("approve", "reject"):
        deciding = _job(_action(actions, word, f"{word} proposals", _decide))
        deciding.add_argument("items", nargs="*", metavar="ITEM")
        deciding.add_argument("--all", action="store_true", help="all that are proposed")
        deciding.add_argument(
            "--min-confidence", type=float, metavar="N", help="those that are as sure as this"
        )
        deciding.add_argument("--note", default="", help="for whoever reads it later")
        deciding.add_argument("-y", "--yes", action="store_true", help="do not ask")
        deciding.set_defaults(decision=word)
    undoing = _job(_action(actions, "undo", "take a decision back, or what was applied", _undo))
    undoing.add_argument("token", nargs="?", metavar="UNDO", help="default: the last one")
    canceling = _job(_action(actions, "cancel", "end one before its time", _cancel))
    canceling.add_argument("--reason", default="")


def _action(actions: Any, name: str, purpose: str, work: Work) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=purpose)
    add_gateway(parser)
    add_output(parser)

    def run(arguments: argparse.Namespace) -> int:
        return work(Console.of(arguments), connect(arguments), arguments)

    parser.set_defaults(work=run)
    return parser


def _job(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("job_id", metavar="ID", help="such as wf_20260214_001")
    return parser


def _start(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if arguments.file is not None:
        body = payload_of("tool", None, arguments.file)
        if arguments.workflow:
            body["workflow"] = arguments.workflow
        told = sluice.request(
            "POST", "/api/workflow/jobs", body=body, idempotency_key=arguments.key or _new_key()
        )
        job = told.get("job") or {}
    else:
        created = sluice.workflows.create(
            arguments.workflow,
            sources=[_source(file) for file in arguments.source or ()] or None,
            auto_advance=not arguments.step_by_step,
            namespace=arguments.ns,
            idempotency_key=arguments.key,
        )
        job = dict(created.raw)
    if not console.for_people:
        console.json(job)
    else:
        console.line(job.get("job_id"))
        if console.terminal:
            console.say(f"follow it with: sluice workflow watch {job.get('job_id')}")
    return Exit.OK


def _new_key() -> str:
    from client.core.calls import new_key

    return new_key()


def _source(file: str) -> dict[str, str]:
    try:
        text = Path(file).read_bytes().decode()
    except UnicodeDecodeError:
        raise Unusable(f"{file} is no UTF-8") from None
    return {"type": "text", "title": Path(file).stem, "text": text}


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    jobs = sluice.workflows.list(status=arguments.status, workflow=arguments.workflow)
    rows = (dict(job.raw) for job in islice(jobs, arguments.limit))
    console.listing(JOB_COLUMNS, rows, "no workflow jobs")
    return Exit.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    job = dict(sluice.workflows.get(arguments.job_id).raw)
    pairs: list[tuple[str, object]] = [
        ("job", job.get("job_id")),
        ("workflow", job.get("workflow")),
        ("status", job.get("status")),
        ("progress", _share(job)),
        ("started", job.get("started_at")),
        ("changed", job.get("updated_at")),
    ]
    for step in job.get("stepper") or ():
        if isinstance(step, Mapping):
            pairs.append((f"  {step.get('name')}", step.get("status")))
    console.facts(pairs, job)
    return Exit.OK


def _results(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    items = sluice.workflows.results(arguments.job_id, step=arguments.step, status=arguments.status)
    rows = (dict(item.raw) for item in islice(items, arguments.limit))
    console.listing(ITEM_COLUMNS, rows, "nothing yet")
    return Exit.OK


def _decide(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    chosen = (arguments.items, arguments.all, arguments.min_confidence is not None)
    if sum(map(bool, chosen)) != 1:
        console.complain("sluice: name items, or give one of --all and --min-confidence")
        return Exit.USAGE
    if not arguments.items and not console.confirm(
        f"{arguments.decision} all that fit, in {arguments.job_id}?", arguments.yes
    ):
        console.complain("sluice: nothing was decided; -y decides without asking")
        return Exit.FAILED if console.can_ask else Exit.USAGE
    decided = sluice.workflows.bulk(
        arguments.job_id,
        arguments.decision,
        ids=arguments.items or None,
        min_confidence=arguments.min_confidence,
        everything=arguments.all,
        note=arguments.note,
    )
    if not console.for_people:
        console.json(dict(decided.raw))
    else:
        pending = "" if decided.pending is None else f", {decided.pending} still to be decided"
        console.line(f"{arguments.decision}: {json.dumps(decided.applied)}{pending}")
        if decided.undo_token:
            command = f"sluice workflow undo {arguments.job_id} {decided.undo_token}"
            console.say(f"to take it back: {command}")
    return Exit.OK if decided.success else Exit.FAILED


def _undo(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    token = arguments.token
    if token is None:
        undo = sluice.workflows.get(arguments.job_id).raw.get("undo")
        token = undo.get("last_undo_token") if isinstance(undo, Mapping) else None
        if not token:
            console.complain(f"sluice: {arguments.job_id} has nothing to take back")
            return Exit.MISSING
    told = sluice.workflows.undo(arguments.job_id, token)
    if console.for_people:
        console.line(f"taken back: {token}")
    else:
        console.json(told)
    return Exit.OK if told.get("success", True) else Exit.FAILED


def _cancel(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    job = dict(sluice.workflows.cancel(arguments.job_id, arguments.reason).raw)
    if console.for_people:
        console.line(f"{job.get('job_id')}  {job.get('status')}")
    else:
        console.json(job)
    return Exit.OK
