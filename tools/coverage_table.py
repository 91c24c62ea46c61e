"""Coverage per package, as a table in Markdown, from the JSON report of coverage.py.

`make coverage` writes the report and prints the table.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

#: Packages with subpackages, which are listed one by one.
_SPLIT = ("common", "gateway", "worker")


def package_of(path: str) -> str:
    """The package of a module: two levels, three below `features`."""
    parts = path.split("/")[:-1]
    if not parts or parts[0] not in _SPLIT:
        return parts[0] if parts else path
    depth = 3 if parts[1:2] == ["features"] else 2
    return "/".join(parts[:depth])


def table(report: dict[str, Any]) -> list[str]:
    """One line per package with the shares of covered lines and branches."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path, entry in report["files"].items():
        summary = entry["summary"]
        values = (
            summary["covered_lines"],
            summary["num_statements"],
            summary["covered_branches"],
            summary["num_branches"],
        )
        for name in (package_of(path), "total"):
            sums[name] = [a + b for a, b in zip(sums[name], values)]
    total = sums.pop("total", [0, 0, 0, 0])
    lines = ["| package | statements | lines covered | branches covered |", "|---|---:|---:|---:|"]
    for name, (lines_hit, lines_all, branches_hit, branches_all) in [
        *sorted(sums.items()),
        ("total", total),
    ]:
        lines.append(
            f"| {name} | {lines_all:,} | {_share(lines_hit, lines_all)} "
            f"| {_share(branches_hit, branches_all)} |"
        )
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


if __name__ == "__main__":
    print("\n".join(table(json.loads(Path(sys.argv[1]).read_text()))))
