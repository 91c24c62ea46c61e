"""`sluice install`: run deploy/install.sh of the checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from sluice.errors import ExitCode

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "install.sh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line; all arguments are the installer's."""
    parser.description = (
        "Passes its arguments to deploy/install.sh: install, upgrade, uninstall, backup, restore, "
        "with the installer's own options and exit codes."
    )
    parser.prefix_chars = "\0"  # options, including --help, are the installer's
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="WORDS", help="for the installer"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the installer; returns its exit code."""
    if not SCRIPT.is_file():
        print(
            "sluice: the installer is part of the checkout, and this is no checkout; run "
            "deploy/install.sh there",
            file=sys.stderr,
        )
        return ExitCode.USAGE
    words = arguments.words
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words = ["install", *words]  # `sluice install --dry-run` means `install --dry-run`
    return subprocess.call(["sh", str(SCRIPT), *words])
