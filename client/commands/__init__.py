"""The commands of `sluice`: the whole table. Only the module of the one asked for is loaded.

A module has `add_arguments(parser)` and `run(arguments)`, which returns the exit code. Those in
`ops` are for who sits at the machine itself; all others need nothing but HTTP.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """Where a command is, and what it does in a few words."""

    module: str
    purpose: str


#: By what people want to do.
GROUPS: dict[str, dict[str, Command]] = {
    "jobs": {
        "submit": Command("client.commands.submit", "hand in a job; follow it if you like"),
        "watch": Command("client.commands.watch", "follow jobs until they end"),
        "get": Command("client.commands.get", "how a job is"),
        "result": Command("client.commands.result", "what came of a job"),
        "events": Command("client.commands.events", "a job's events, one a line"),
        "trace": Command("client.commands.trace", "where a job's time went"),
        "ls": Command("client.commands.ls", "list and search jobs"),
        "cancel": Command("client.commands.cancel", "end jobs before their time"),
        "retry": Command("client.commands.retry", "the same once more, as new jobs"),
    },
    "the other doors": {
        "workflow": Command("client.commands.workflow", "start, watch, review and undo workflows"),
        "image": Command("client.commands.image", "upload, watch and fetch images"),
        "rag": Command("client.commands.rag", "add and search documents"),
    },
    "the whole": {
        "top": Command("client.commands.top", "everything at a glance, live"),
        "stats": Command("client.commands.stats", "throughput, latency and backlog over time"),
        "queue": Command("client.commands.queue", "look at, pause and resume the queue"),
        "worker": Command("client.commands.worker", "who works, and on how much"),
        "dlq": Command("client.commands.dlq", "what was given up, and once more"),
        "audit": Command(
            "client.commands.audit", "check that every job has exactly one end and none is lost"
        ),
        "bench": Command("client.commands.bench", "a small check for loss and latency"),
    },
    "this machine": {
        "up": Command("client.commands.up", "run gateway, worker and Redis together"),
        "install": Command("client.commands.install", "install it as services of this box"),
        "doctor": Command(
            "ops.doctor.command", "look at everything, and name the fix of each fault"
        ),
        "model": Command(
            "ops.model.command", "install and serve a small model, for trying and testing"
        ),
        "key": Command("ops.keys", "make, list, rotate and revoke API keys"),
        "config": Command("ops.config", "every setting, its value, and where that comes from"),
    },
    "this command": {
        "version": Command("client.commands.version", "which version this is, and the gateway's"),
        "completion": Command("client.commands.completion", "completion for bash, zsh and fish"),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
