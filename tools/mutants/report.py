"""The outcome of a run as a table and a list of survivors, in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tools.mutants.runner import Result
from tools.mutants.selection import package_of


def table(results: Iterable[Result]) -> list[str]:
    """One line per package. A mutant whose tests do not end counts as killed."""
    packages: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        packages[package_of(result.path)].append(result)
        packages["total"].append(result)
    packages["total"] = packages.pop("total", [])
    lines = [
        "| package | mutants | killed | of these by timeout | errors | score |",
        "|---|---|---|---|---|---|",
    ]
    for package, found in packages.items():
        timeouts = sum(result.status == "timeout" for result in found)
        killed = sum(result.status == "killed" for result in found) + timeouts
        errors = sum(result.status == "error" for result in found)
        judged = len(found) - errors
        score = f"{100 * killed / judged:.1f} %" if judged else "–"
        lines.append(f"| {package} | {len(found)} | {killed} | {timeouts} | {errors} | {score} |")
    return lines


def markdown(results: list[Result]) -> str:
    """The table, then each survivor with its change."""
    results = sorted(
        results, key=lambda result: (package_of(result.path), result.path, result.line)
    )
    lines = [*table(results), ""]
    survivors = [result for result in results if result.status == "survived"]
    if survivors:
        lines += ["Survivors:", ""]
    for result in survivors:
        lines += [f"`{result.path}:{result.line}` ({result.id.split(':')[1]})", ""]
        lines += ["```diff", result.change, "```", ""]
    return "\n".join(lines)
