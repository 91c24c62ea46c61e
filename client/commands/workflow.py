"""`sluice workflow watch`: a workflow job as it happens, until it ends or waits for somebody."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from client.commands import webhooks, workflow_jobs
from client.commands.gateway_options import add_gateway, connect
from client.core.workflow_api import path_of
from client.exits import Exit
from client.terminal.text import as_json, printable

if TYPE_CHECKING:
    from client import Event, Sluice
    from client.core.workflow_models import WorkflowJob

BAR = 24
_STATUSES = {"completed": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.CANCELED}
_WAITS = "job.waiting_input"
#: Members of an event's data that need no name beside them.
_FIRST = ("step", "summary")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    watching = actions.add_parser(
        "watch",
        help="follow it until it ends",
        description="Exit code 0: it completed; 1: it failed; 3: it was cancelled; 8: it waits for "
        "a decision (only with --until-input); 66: there is no such job; 5: no gateway answers.",
    )
    watching.add_argument("job_id", metavar="ID", help="such as wf_20260214_001")
    add_gateway(watching)
    watching.add_argument(
        "--until-input", action="store_true", help="end as soon as somebody has to decide"
    )
    watching.add_argument("-o", "--output", choices=("table", "jsonl"), default="table")
    watching.set_defaults(work=watch)
    workflow_jobs.register(actions)
    webhooks.register(actions)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    code: int = arguments.work(arguments)
    return code


def watch(arguments: argparse.Namespace) -> int:
    """Follow it to its end; returns the exit code."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    screen = _Screen(arguments.output)
    try:
        with connect(arguments) as sluice:
            return _watch(sluice, arguments.job_id, arguments.until_input, screen)
    except KeyboardInterrupt:
        screen.tell("the workflow goes on without us")
        return Exit.INTERRUPTED
    finally:
        screen.clear()


def _watch(sluice: Sluice, job_id: str, until_input: bool, screen: _Screen) -> int:
    screen.begin(sluice.workflows.get(job_id))
    for event in sluice.workflows.watch(job_id, say=screen.tell):
        if "." not in event.type:  # all others are the stream's own, such as a gap
            continue
        screen.show(event)
        if event.type == _WAITS:
            job = sluice.workflows.get(job_id)  # what is told may be old news
            if job.waits:
                screen.ask(f"{sluice.url}{path_of(job_id)}", job)
                if until_input:
                    return Exit.WAITING
    job = sluice.workflows.get(job_id)
    screen.end(job)
    return _STATUSES.get(job.status, Exit.FAILED)


class _Screen:
    """What a person or a program sees: events on stdout, progress and troubles on stderr."""

    def __init__(self, output: str) -> None:
        self._jsonl = output == "jsonl"
        self._bar = sys.stderr.isatty() and not self._jsonl
        self._drawn = False

    def begin(self, job: WorkflowJob) -> None:
        """Where it stands."""
        if not self._jsonl:
            steps = ", ".join(str(step.get("name")) for step in job.stepper)
            self._print(f"{job.job_id}  {job.workflow}: {steps}")

    def show(self, event: Event) -> None:
        """An event."""
        data = event.data if isinstance(event.data, dict) else {}
        if self._jsonl:
            print(as_json({"id": event.id, "type": event.type, "data": data}), flush=True)
        elif event.type == "step.progress":
            self._draw(data)
        else:
            self._print(f"{event.type:18}  {_words(data)}".rstrip())

    def ask(self, url: str, job: WorkflowJob) -> None:
        """What somebody has to do now, ready to be typed."""
        if self._jsonl:
            return
        step = job.current_step
        self.tell(f"waiting for decisions; look:    curl '{url}/results?status=proposed'")
        self.tell(
            f"approve all of them:            curl -X POST {url}/proposals/bulk "
            """-H 'Content-Type: application/json' -d '{"action":"approve","all":true}'"""
        )
        self.tell(
            f"or approve these, reject those: curl -X POST {url}/steps/{step}/execute "
            "-H 'Content-Type: application/json' "
            """-d '{"payload":{"decisions":[{"id":"p_001","action":"approve"}]}}'"""
        )

    def end(self, job: WorkflowJob) -> None:
        """How it ended."""
        if not self._jsonl:
            self._print(f"{job.status} ({job.progress:.0%})")

    def tell(self, text: str) -> None:
        """Something for the person, not for programs."""
        self.clear()
        print(printable(text), file=sys.stderr, flush=True)

    def _print(self, text: str) -> None:
        self.clear()
        print(printable(text), flush=True)

    def _draw(self, data: dict[str, Any]) -> None:
        """One changing line, on a terminal only."""
        done, total = data.get("done"), data.get("total")
        if not self._bar or not isinstance(done, int) or not isinstance(total, int) or total < 1:
            return
        filled = min(BAR, BAR * done // total)
        bar = "#" * filled + "." * (BAR - filled)
        text = printable(f"{data.get('step', '')} [{bar}] {done}/{total}")
        print(f"\r{text}", end="\x1b[K", file=sys.stderr, flush=True)
        self._drawn = True

    def clear(self) -> None:
        """Make room for other lines."""
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = False


def _words(data: dict[str, Any]) -> str:
    """An event's data in one line; what is long or nested is left to `-o jsonl`."""
    parts = []
    for name, value in sorted(data.items(), key=lambda item: item[0] not in _FIRST):
        if name == "errors" and isinstance(value, list):
            faults = (each for each in value if isinstance(each, dict))
            parts += [f"{each.get('code')}: {each.get('message')}" for each in faults]
        elif isinstance(value, (str, int, float)) and value != "":
            parts.append(str(value) if name in _FIRST else f"{name}={value}")
    return "  ".join(parts)
