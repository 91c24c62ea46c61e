"""`sluice token`: create a token with which a web page may read one job."""

from __future__ import annotations

import argparse

from sluice.commands.arguments import add_gateway_option, connect, seconds
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Create a token with which a web page may read and watch one job, without an API key, as "
        "the query parameter `token`. It is valid for --ttl, and not longer than the API key."
    )
    parser.epilog = """Examples:
  sluice token 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice token wf_20260214_001 --workflow --ttl 1h"""
    parser.add_argument("job_id", metavar="ID")
    parser.add_argument("--workflow", action="store_true", help="ID is that of a workflow job")
    parser.add_argument(
        "--ttl", type=seconds, default=600.0, metavar="TIME", help="1s to 1h (default: 10m)"
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    name = "workflow_job_id" if arguments.workflow else "job_id"
    created = connect(arguments).create_token(
        **{name: arguments.job_id}, ttl_s=round(arguments.ttl)
    )
    console.print_value(created.token, created.raw)
    return ExitCode.OK
