"""`sluice workflow webhooks`: deliveries that were given up, and once more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.exits import Exit
from client.terminal.text import as_json, printable

if TYPE_CHECKING:
    from client import Sluice
    from client.core.workflow_models import WebhookLetter

PAGE = 200


def register(actions: Any) -> None:
    """Add the command to those of `workflow`."""
    parser: argparse.ArgumentParser = actions.add_parser(
        "webhooks",
        help="list deliveries that were given up, or send them again",
        description="Exit code 0: done; 1: some were refused; 5: no gateway answers.",
    )
    add_gateway(parser)
    parser.add_argument("-o", "--output", choices=("table", "jsonl"), default="table")
    parser.add_argument(
        "--redrive",
        nargs="*",
        metavar="EVENT_ID",
        help="send these again, byte for byte; all of them where none is named",
    )
    parser.set_defaults(work=webhooks)


def webhooks(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    with connect(arguments) as sluice:
        if arguments.redrive is None:
            return _list(sluice, arguments.output)
        return _redrive(sluice, arguments.redrive)


def _list(sluice: Sluice, output: str) -> int:
    for letter in sluice.workflows.webhook_letters(PAGE):
        print(as_json(letter.raw) if output == "jsonl" else _row(letter))
    return Exit.OK


def _row(letter: WebhookLetter) -> str:
    last = (letter.attempts_detail or [{}])[-1].get("error", "")
    state = letter.redrive.get("status", "")
    parts = (letter.failed_at, state, letter.event_id, letter.url)
    return printable("  ".join((*parts, f"{letter.attempts} tries: {last}")))


def _redrive(sluice: Sluice, event_ids: list[str]) -> int:
    answer = sluice.workflows.redrive_webhooks(event_ids or None)
    again, before = len(answer.get("redriven", ())), len(answer.get("skipped", ()))
    print(f"{again} to be sent again, {before} arrived before or under way")
    return Exit.OK if answer.get("success") else Exit.FAILED
