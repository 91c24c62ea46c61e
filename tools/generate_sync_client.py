"""Generates sluice/sync from sluice/aio (`make sync-client`); --check only compares.

The asyncio client is written manually. The blocking client is the same text without `async` and
`await`, with the other transport. With --check, exit code 1 means that files are out of date.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TARGET = ROOT / "sluice" / "aio", ROOT / "sluice" / "sync"
HEADER = "# Generated from sluice/aio/{name}; edit that file.\n"
#: Patterns and their replacements, applied in this order: docstrings first, then code.
REPLACEMENTS = (
    (r"\basyncio client\b", "blocking client"),
    (r"\bBound to one event loop\b", "Thread-safe"),
    (r"\ban `async with` statement\b", "a `with` statement"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait\s+", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bsluice\.aio\b", "sluice.sync"),
    (r"\bsluice\.transport\.aio\b", "sluice.transport.sync"),
)


def generate(name: str) -> str:
    """Returns the blocking version of a module of the asyncio client."""
    text = (SOURCE / name).read_text()
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return _format(HEADER.format(name=name) + text, TARGET / name)


def _format(text: str, path: Path) -> str:
    """Sorts imports and joins lines that became short, as `ruff` does for the whole project."""
    for command in (("check", "--select", "I", "--fix-only", "--quiet"), ("format", "--quiet")):
        line = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        done = subprocess.run(line, input=text, capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            raise SystemExit(f"{path}: {done.stderr}")
        text = done.stdout
    return text


def main() -> int:

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare only")
    check = parser.parse_args().check
    generated = {path.name: generate(path.name) for path in sorted(SOURCE.glob("*.py"))}
    existing = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    stale = sorted(
        name for name in {*generated, *existing} if generated.get(name) != existing.get(name)
    )
    if check:
        for name in stale:
            print(f"sluice/sync/{name} is out of date; run `make sync-client`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        if name in generated:
            (TARGET / name).write_text(generated[name])
        else:
            (TARGET / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
