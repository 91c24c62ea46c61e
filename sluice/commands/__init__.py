"""The table of all commands of `sluice`. Only the module of the requested command is imported.

A command is one module with `add_arguments(parser)` and `run(arguments)`, which returns the exit
code. Modules in `ops` access Redis and the files of this machine; all others use only HTTP.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """The module of a command, and its one-line help."""

    module: str
    purpose: str


#: The sections of `sluice --help`.
GROUPS: dict[str, dict[str, Command]] = {
    "Submit and follow jobs": {
        "submit": Command("sluice.commands.jobs.submit", "submit a job"),
        "watch": Command("sluice.commands.jobs.watch", "follow jobs until they end"),
        "get": Command("sluice.commands.jobs.get", "show a job"),
        "result": Command("sluice.commands.jobs.result", "print the result of a job"),
        "events": Command("sluice.commands.jobs.events", "print the events of a job"),
        "trace": Command("sluice.commands.jobs.trace", "show how long each phase of a job took"),
        "token": Command("sluice.commands.jobs.token", "let a web page read one job"),
        "ls": Command("sluice.commands.jobs.list", "list and search jobs"),
        "cancel": Command("sluice.commands.jobs.cancel", "cancel jobs"),
        "retry": Command("sluice.commands.jobs.retry", "submit jobs again as new jobs"),
    },
    "Workflows, images, documents": {
        "workflow": Command(
            "sluice.commands.features.workflow", "start, watch, review and undo workflows"
        ),
        "image": Command("sluice.commands.features.image", "upload, watch and download images"),
        "rag": Command("sluice.commands.features.rag", "add and search documents"),
    },
    "Monitor and operate": {
        "top": Command("sluice.commands.admin.top", "show live statistics, workers and jobs"),
        "stats": Command(
            "sluice.commands.admin.stats", "show throughput, latency and backlog over time"
        ),
        "queue": Command("sluice.commands.admin.queue", "show, pause, resume and drain the queue"),
        "worker": Command("sluice.commands.admin.worker", "list workers and the jobs they run"),
        "tools": Command("sluice.commands.admin.tools", "list the tools that jobs may call"),
        "dlq": Command("sluice.commands.admin.dlq", "list, redrive and purge dead letters"),
        "audit": Command("sluice.commands.admin.audit", "check the integrity of all jobs"),
        "bench": Command("sluice.commands.admin.bench", "run a short test for loss and latency"),
    },
    "Run and set up": {
        "up": Command("sluice.commands.local.up", "run gateway, worker and Redis together"),
        "install": Command("sluice.commands.local.install", "install the systemd services"),
        "doctor": Command(
            "sluice.ops.doctor.command", "diagnose problems and print how to fix them"
        ),
        "model": Command("sluice.ops.model.command", "install and serve a small language model"),
        "key": Command("sluice.ops.keys", "create, list, rotate and revoke API keys"),
        "config": Command("sluice.ops.config", "show and check the settings"),
    },
    "Misc": {
        "version": Command("sluice.commands.local.version", "print the version"),
        "completion": Command(
            "sluice.commands.local.completion", "print a completion script for bash, zsh or fish"
        ),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
