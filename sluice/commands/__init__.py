"""The table of all commands of `sluice`. Only the module of the command that runs is imported.

A module has `add_arguments(parser)` and `run(arguments)`, which returns the exit code. Modules in
`ops` use Redis and files of this machine; all others need nothing but HTTP.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command's module, and what it does in a few words."""

    module: str
    purpose: str


#: The sections of `sluice --help`.
GROUPS: dict[str, dict[str, Command]] = {
    "jobs": {
        "submit": Command("sluice.commands.jobs.submit", "submit a job; follow it if you like"),
        "watch": Command("sluice.commands.jobs.watch", "follow jobs until they end"),
        "get": Command("sluice.commands.jobs.get", "show a job"),
        "result": Command("sluice.commands.jobs.result", "print the result of a job"),
        "events": Command("sluice.commands.jobs.events", "print the events of a job, one a line"),
        "trace": Command("sluice.commands.jobs.trace", "show where the time of a job went"),
        "ls": Command("sluice.commands.jobs.list", "list and search jobs"),
        "cancel": Command("sluice.commands.jobs.cancel", "cancel jobs"),
        "retry": Command("sluice.commands.jobs.retry", "submit jobs again, as new ones"),
    },
    "workflows, images and documents": {
        "workflow": Command(
            "sluice.commands.features.workflow", "start, watch, review and undo workflows"
        ),
        "image": Command("sluice.commands.features.image", "upload, watch and fetch images"),
        "rag": Command("sluice.commands.features.rag", "add and search documents"),
    },
    "operations": {
        "top": Command("sluice.commands.admin.top", "statistics, workers and jobs, live"),
        "stats": Command(
            "sluice.commands.admin.stats", "throughput, latency and backlog over time"
        ),
        "queue": Command("sluice.commands.admin.queue", "show, pause, resume and drain the queue"),
        "worker": Command("sluice.commands.admin.worker", "list workers and what they run"),
        "dlq": Command("sluice.commands.admin.dlq", "list, redrive and purge dead letters"),
        "audit": Command(
            "sluice.commands.admin.audit",
            "check that every job has exactly one end and none is lost",
        ),
        "bench": Command("sluice.commands.admin.bench", "a small check for loss and latency"),
    },
    "this machine": {
        "up": Command("sluice.commands.local.up", "run gateway, worker and Redis together"),
        "install": Command("sluice.commands.local.install", "install services on this machine"),
        "doctor": Command("ops.doctor.command", "check everything, and name the fix of each fault"),
        "model": Command(
            "ops.model.command", "install and serve a small model, for trying and testing"
        ),
        "key": Command("ops.keys", "make, list, rotate and revoke API keys"),
        "config": Command("ops.config", "every setting, its value, and where that comes from"),
    },
    "this command": {
        "version": Command("sluice.commands.local.version", "print the version"),
        "completion": Command(
            "sluice.commands.local.completion", "completion for bash, zsh and fish"
        ),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
