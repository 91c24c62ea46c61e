"""`sluice workflow`: start, watch, review, undo and cancel workflow jobs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.api.workflows import job_path
from sluice.commands.arguments import (
    UsageError,
    add_gateway_option,
    add_limit_option,
    connect,
    read_payload,
)
from sluice.commands.jobs.get import preview
from sluice.errors import ExitCode
from sluice.terminal.console import (
    JSONL,
    TABLE,
    Console,
    add_format_option,
    add_output_options,
)
from sluice.terminal.render import Column
from sluice.terminal.screen import progress_bar
from sluice.terminal.text import as_json, count_of, printable
from sluice.transport.request import new_idempotency_key

if TYPE_CHECKING:
    from sluice import Event, Sluice
    from sluice.api.workflows import WebhookDeadLetter, WorkflowJob

STATUSES = ("queued", "running", "waiting_input", "completed", "failed", "cancelled")
#: Webhook deliveries per request.
PAGE_SIZE = 200
Row = Mapping[str, Any]
Work = Callable[[Console, "Sluice", argparse.Namespace], int]
_EXIT_CODES = {
    "completed": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "cancelled": ExitCode.CANCELED,
}
_WAITING_INPUT = "job.waiting_input"
#: Members of event data that are printed first and without their names.
_UNNAMED = ("step", "summary")


def _share(job: Row) -> str:
    progress = job.get("progress")
    return f"{progress:.0%}" if isinstance(progress, (int, float)) else ""


JOB_COLUMNS = (
    Column("JOB", lambda row: row.get("job_id")),
    Column("WORKFLOW", lambda row: row.get("workflow")),
    Column("STATUS", lambda row: row.get("status"), status=True),
    Column("STEP", lambda row: row.get("current_step")),
    Column("PROGRESS", _share, right=True),
    Column("UPDATED", lambda row: row.get("updated_at")),
)
ITEM_COLUMNS = (
    Column("ITEM", lambda row: row.get("id")),
    Column("TYPE", lambda row: row.get("type")),
    Column("STATUS", lambda row: row.get("status"), status=True),
    Column("CONTENT", lambda row: preview(row.get("payload"))),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice workflow start --source notes.txt
  sluice workflow start release_notes_v1 -f request.json
  sluice workflow watch wf_20260214_001 --until-input
  sluice workflow ls --status waiting_input
  sluice workflow show wf_20260214_001
  sluice workflow results wf_20260214_001 --status proposed
  sluice workflow approve wf_20260214_001 --min-confidence 0.9
  sluice workflow reject wf_20260214_001 p_001 p_002
  sluice workflow undo wf_20260214_001
  sluice workflow cancel wf_20260214_001 --reason "wrong source"
  sluice workflow webhooks --redrive"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    watch = actions.add_parser(
        "watch",
        help="follow a workflow job until it ends",
        description="Follow a workflow job until it ends. Exit code 0: completed; 1: failed; 3: "
        "cancelled; 8: waiting for a decision (only with --until-input); 66: no such job; 5: no "
        "gateway answers.",
    )
    watch.add_argument("job_id", metavar="ID", help="such as wf_20260214_001")
    add_gateway_option(watch)
    watch.add_argument(
        "--until-input", action="store_true", help="exit as soon as a decision is needed"
    )
    add_format_option(watch, TABLE, JSONL)
    watch.set_defaults(work=_watch)
    _add_job_actions(actions)
    _add_webhooks(actions)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.work(arguments)
    return code


# -- jobs ---------------------------------------------------------------------------------------


def _add_job_actions(actions: Any) -> None:
    start = _add_action(actions, "start", "start a workflow job", _start)
    start.add_argument(
        "workflow", nargs="?", help="name of the workflow (default: the first of the gateway)"
    )
    start.add_argument("-f", "--file", metavar="FILE", help="read the request as JSON; - for stdin")
    start.add_argument(
        "--source", action="append", metavar="FILE", help="text file to use as a source; repeatable"
    )
    start.add_argument("--step-by-step", action="store_true", help="do not advance automatically")
    start.add_argument("--ns", metavar="NAME", help="namespace of the documents")
    start.add_argument("--key", help="Idempotency-Key: repeating the request returns the same job")
    list_ = _add_action(actions, "ls", "list workflow jobs, newest first", _list)
    list_.add_argument("--status", choices=STATUSES)
    list_.add_argument("--workflow", metavar="NAME")
    add_limit_option(list_)
    _add_job_id(_add_action(actions, "show", "show a workflow job", _show))
    results = _add_job_id(
        _add_action(actions, "results", "list the items that steps found or proposed", _results)
    )
    results.add_argument("--step", metavar="NAME")
    results.add_argument("--status", metavar="STATUS", help="filter by status, such as proposed")
    add_limit_option(results)
    for word in ("approve", "reject"):
        decide = _add_job_id(_add_action(actions, word, f"{word} proposals", _decide))
        decide.add_argument("items", nargs="*", metavar="ITEM")
        decide.add_argument("--all", action="store_true", help="all proposed items")
        decide.add_argument(
            "--min-confidence",
            type=float,
            metavar="N",
            help="all items with at least this confidence",
        )
        decide.add_argument("--note", default="", help="note, recorded with the decision")
        decide.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
        decide.set_defaults(decision=word)
    undo = _add_job_id(
        _add_action(actions, "undo", "undo a decision, or the changes of an applied step", _undo)
    )
    undo.add_argument(
        "token", nargs="?", metavar="TOKEN", help="undo token (default: the last one)"
    )
    cancel = _add_job_id(_add_action(actions, "cancel", "cancel a workflow job", _cancel))
    cancel.add_argument("--reason", default="")


def _add_action(actions: Any, name: str, purpose: str, work: Work) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=purpose)
    add_gateway_option(parser)
    add_output_options(parser)

    def run(arguments: argparse.Namespace) -> int:
        return work(Console.from_arguments(arguments), connect(arguments), arguments)

    parser.set_defaults(work=run)
    return parser


def _add_job_id(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("job_id", metavar="ID", help="such as wf_20260214_001")
    return parser


def _start(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    if arguments.file is not None:
        body = read_payload("tool", None, arguments.file)
        if arguments.workflow:
            body["workflow"] = arguments.workflow
        key = arguments.key or new_idempotency_key()
        response = sluice.request("POST", "/api/workflow/jobs", body=body, idempotency_key=key)
        job = response.get("job") or {}
    else:
        created = sluice.workflows.create(
            arguments.workflow,
            sources=[_source(file) for file in arguments.source or ()] or None,
            auto_advance=not arguments.step_by_step,
            namespace=arguments.ns,
            idempotency_key=arguments.key,
        )
        job = dict(created.raw)
    console.print_value(job.get("job_id"), job)
    if console.is_table and console.is_terminal:
        console.info(f"to follow it: sluice workflow watch {job.get('job_id')}")
    return ExitCode.OK


def _source(file: str) -> dict[str, str]:
    try:
        text = Path(file).read_bytes().decode()
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text") from None
    return {"type": "text", "title": Path(file).stem, "text": text}


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    jobs = sluice.workflows.list(status=arguments.status, workflow=arguments.workflow)
    rows = (dict(job.raw) for job in islice(jobs, arguments.limit))
    console.print_rows(JOB_COLUMNS, rows, "no workflow jobs")
    return ExitCode.OK


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    job = dict(sluice.workflows.get(arguments.job_id).raw)
    pairs: list[tuple[str, object]] = [
        ("job", job.get("job_id")),
        ("workflow", job.get("workflow")),
        ("status", job.get("status")),
        ("progress", _share(job)),
        ("started", job.get("started_at")),
        ("updated", job.get("updated_at")),
    ]
    for step in job.get("stepper") or ():
        if isinstance(step, Mapping):
            pairs.append((f"  {step.get('name')}", step.get("status")))
    console.print_details(pairs, job)
    return ExitCode.OK


def _results(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    items = sluice.workflows.results(arguments.job_id, step=arguments.step, status=arguments.status)
    rows = (dict(item.raw) for item in islice(items, arguments.limit))
    console.print_rows(ITEM_COLUMNS, rows, "no items yet")
    return ExitCode.OK


def _decide(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    chosen = (arguments.items, arguments.all, arguments.min_confidence is not None)
    if sum(map(bool, chosen)) != 1:
        console.error("sluice: pass item ids, or one of --all and --min-confidence")
        return ExitCode.USAGE
    if not arguments.items and not console.confirm(
        f"{arguments.decision} all matching items of {arguments.job_id}?", arguments.yes
    ):
        return console.declined("sluice: nothing decided; use -y to skip the confirmation")
    result = sluice.workflows.bulk(
        arguments.job_id,
        arguments.decision,
        ids=arguments.items or None,
        min_confidence=arguments.min_confidence,
        everything=arguments.all,
        note=arguments.note,
    )
    if not console.is_table:
        console.print_json(dict(result.raw))
    else:
        pending = "" if result.pending is None else f", {result.pending} pending"
        console.print_line(f"{arguments.decision}: {json.dumps(result.applied)}{pending}")
        if result.undo_token:
            command = f"sluice workflow undo {arguments.job_id} {result.undo_token}"
            console.info(f"to undo: {command}")
    return ExitCode.OK if result.success else ExitCode.FAILED


def _undo(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    token = arguments.token
    if token is None:
        undo = sluice.workflows.get(arguments.job_id).raw.get("undo")
        token = undo.get("last_undo_token") if isinstance(undo, Mapping) else None
        if not token:
            console.error(f"sluice: {arguments.job_id} has nothing to undo")
            return ExitCode.NOT_FOUND
    response = sluice.workflows.undo(arguments.job_id, token)
    console.print_value(f"undone: {token}", response)
    return ExitCode.OK if response.get("success", True) else ExitCode.FAILED


def _cancel(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    job = dict(sluice.workflows.cancel(arguments.job_id, arguments.reason).raw)
    console.print_value(f"{job.get('job_id')}  {job.get('status')}", job)
    return ExitCode.OK


# -- watch --------------------------------------------------------------------------------------


def _watch(arguments: argparse.Namespace) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    screen = _Screen(arguments.output)
    try:
        with connect(arguments) as sluice:
            return _follow(sluice, arguments.job_id, arguments.until_input, screen)
    except KeyboardInterrupt:
        screen.info("the workflow keeps running")
        return ExitCode.INTERRUPTED
    finally:
        screen.clear()


def _follow(sluice: Sluice, job_id: str, until_input: bool, screen: _Screen) -> int:
    screen.print_job(sluice.workflows.get(job_id))
    for event in sluice.workflows.watch(job_id, notify=screen.info):
        if "." not in event.type:  # an event of the stream protocol, such as a gap
            continue
        screen.print_event(event)
        if event.type == _WAITING_INPUT:
            job = sluice.workflows.get(job_id)  # the event may be out of date
            if job.waits:
                screen.explain_review(f"{sluice.url}{job_path(job_id)}", job)
                if until_input:
                    return ExitCode.INPUT_REQUIRED
    job = sluice.workflows.get(job_id)
    screen.print_end(job)
    return _EXIT_CODES.get(job.status, ExitCode.FAILED)


class _Screen:
    """Prints events on stdout, progress and messages on stderr."""

    def __init__(self, output: str) -> None:
        self._jsonl = output == "jsonl"
        self._bar = sys.stderr.isatty() and not self._jsonl
        self._drawn = False

    def print_job(self, job: WorkflowJob) -> None:
        if not self._jsonl:
            steps = ", ".join(str(step.get("name")) for step in job.stepper)
            self._print(f"{job.job_id}  {job.workflow}: {steps}")

    def print_event(self, event: Event) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        if self._jsonl:
            print(as_json({"id": event.id, "type": event.type, "data": data}), flush=True)
        elif event.type == "step.progress":
            self._draw_bar(data)
        else:
            self._print(f"{event.type:18}  {_summarize(data)}".rstrip())

    def explain_review(self, url: str, job: WorkflowJob) -> None:
        """Print the commands for deciding on the proposals."""
        if self._jsonl:
            return
        step = job.current_step
        self.info(f"waiting for decisions; list:    curl '{url}/results?status=proposed'")
        self.info(
            f"approve all:                    curl -X POST {url}/proposals/bulk "
            """-H 'Content-Type: application/json' -d '{"action":"approve","all":true}'"""
        )
        self.info(
            f"or decide on single items:      curl -X POST {url}/steps/{step}/execute "
            "-H 'Content-Type: application/json' "
            """-d '{"payload":{"decisions":[{"id":"p_001","action":"approve"}]}}'"""
        )

    def print_end(self, job: WorkflowJob) -> None:
        if not self._jsonl:
            self._print(f"{job.status} ({job.progress:.0%})")

    def info(self, text: str) -> None:
        self.clear()
        print(printable(text), file=sys.stderr, flush=True)

    def _print(self, text: str) -> None:
        self.clear()
        print(printable(text), flush=True)

    def _draw_bar(self, data: dict[str, Any]) -> None:
        """Draw the progress line, on a terminal only."""
        done, total = data.get("done"), data.get("total")
        if not self._bar or not isinstance(done, int) or not isinstance(total, int) or total < 1:
            return
        text = printable(progress_bar(str(data.get("step", "")), done, total))
        print(f"\r{text}", end="\x1b[K", file=sys.stderr, flush=True)
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = False


def _summarize(data: dict[str, Any]) -> str:
    """Event data on one line, without nested values; `-o jsonl` prints everything."""
    parts = []
    for name, value in sorted(data.items(), key=lambda item: item[0] not in _UNNAMED):
        if name == "errors" and isinstance(value, list):
            faults = (each for each in value if isinstance(each, dict))
            parts += [f"{each.get('code')}: {each.get('message')}" for each in faults]
        elif isinstance(value, (str, int, float)) and value != "":
            parts.append(str(value) if name in _UNNAMED else f"{name}={value}")
    return "  ".join(parts)


# -- webhooks -----------------------------------------------------------------------------------


def _add_webhooks(actions: Any) -> None:
    parser: argparse.ArgumentParser = actions.add_parser(
        "webhooks",
        help="list or redrive dead-lettered webhook deliveries",
        description="List webhook deliveries whose attempts are exhausted, or redrive them. Exit "
        "code 0: done; 1: some were refused; 5: no gateway answers.",
    )
    add_gateway_option(parser)
    add_format_option(parser, TABLE, JSONL)
    parser.add_argument(
        "--redrive",
        nargs="*",
        metavar="EVENT_ID",
        help="send these events again unchanged; all if no id is given",
    )
    parser.set_defaults(work=_webhooks)


def _webhooks(arguments: argparse.Namespace) -> int:
    with connect(arguments) as sluice:
        if arguments.redrive is None:
            return _list_dead_letters(sluice, arguments.output)
        return _redrive(sluice, arguments.redrive)


def _list_dead_letters(sluice: Sluice, output: str) -> int:
    for dead_letter in sluice.workflows.webhook_dead_letters(PAGE_SIZE):
        print(as_json(dead_letter.raw) if output == "jsonl" else _row(dead_letter))
    return ExitCode.OK


def _row(dead_letter: WebhookDeadLetter) -> str:
    last_error = (dead_letter.attempts_detail or [{}])[-1].get("error", "")
    state = dead_letter.redrive.get("status", "")
    parts = (dead_letter.failed_at, state, dead_letter.event_id, dead_letter.url)
    attempts = count_of(dead_letter.attempts, "attempt")
    return printable("  ".join((*parts, f"{attempts}: {last_error}")))


def _redrive(sluice: Sluice, event_ids: list[str]) -> int:
    response = sluice.workflows.redrive_webhooks(event_ids or None)
    redriven, skipped = len(response.get("redriven", ())), len(response.get("skipped", ()))
    print(f"{redriven} redriven, {skipped} skipped (delivered or in progress)")
    return ExitCode.OK if response.get("success") else ExitCode.FAILED
