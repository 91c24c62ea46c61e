"""`sluice install`: run the installer of the checkout, deploy/install.sh."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from sluice.errors import ExitCode

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "install.sh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run deploy/install.sh of the checkout with the given arguments: install, upgrade, "
        "uninstall, backup, restore. Options and exit codes are those of the installer."
    )
    parser.prefix_chars = "\0"  # pass all options, including --help, to the installer
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="arguments of the installer"
    )


def run(arguments: argparse.Namespace) -> int:
    if not SCRIPT.is_file():
        print(
            "sluice: deploy/install.sh not found: this is not a checkout; run the installer from "
            "a checkout",
            file=sys.stderr,
        )
        return ExitCode.USAGE
    words = arguments.words
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words = ["install", *words]  # `sluice install --dry-run` means `install --dry-run`
    return subprocess.call(["sh", str(SCRIPT), *words])
