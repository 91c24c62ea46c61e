"""`sluice watch`: follow jobs until they end."""

from __future__ import annotations

import argparse

from client.commands.gateway_options import add_gateway, connect
from client.commands.words import duration_s
from client.terminal.console import JSONL, TABLE, Console, add_output

_DESCRIPTION = """Shows a job as it happens: its answer on stdout, how it goes on stderr; of several
jobs, a line an event. Through dropped connections and restarts of the gateway it goes on where it
was. Ctrl-C asks whether to cancel; once more leaves. Exit code: 0 done, 1 failed, 3 canceled, 6 not
ended within --timeout; of several, that of the first that did not end well."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument(
        "--from", dest="after", metavar="EVENT_ID", help="only what came after this event"
    )
    parser.add_argument(
        "--timeout", type=duration_s, metavar="TIME", help="not longer than this, such as 10m"
    )
    parser.add_argument("--bell", action="store_true", help="ring when all have ended")
    add_gateway(parser)
    add_output(parser, TABLE, JSONL)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from client.commands.following import Follower

    sluice = connect(arguments)
    handles = [sluice.job(job_id) for job_id in dict.fromkeys(arguments.job_ids)]
    for handle in handles:
        handle.get()  # an id that is none is told now, and not among the events of others
    follower = Follower(
        Console.of(arguments),
        handles,
        after=arguments.after,
        timeout_s=arguments.timeout,
        bell=arguments.bell,
    )
    return follower.run()
