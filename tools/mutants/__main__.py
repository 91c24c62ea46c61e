"""Mutation testing of the job scripts, the store, the worker and the gateway.

`make mutants ARGS="--sample 60 --seed 1"` runs the fast tests against a sample of small changes
of the product code, and lists the changes that no test detects.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.mutants.faults import faults_in
from tools.mutants.mutant import Mutant
from tools.mutants.report import markdown, table
from tools.mutants.runner import Checkout, Result
from tools.mutants.selection import (
    LUA_PACKAGES,
    PYTHON_PACKAGES,
    TESTS,
    TestMap,
    mutants_of,
    sample,
)

#: The bundled server is faster than fakeredis, and exact; the system's is newer. A test runs on the
#: first of these that it has a variant for; the nearest tests of a survivor also on the others.
SERVERS = ("redis-bundled", "fakeredis", "redis-system")
#: A step may take this long, plus a multiple of its recorded duration.
TIMEOUT_S, TIMEOUT_FACTOR = 60.0, 5.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    add = parser.add_argument
    add("--sample", type=int, metavar="N", default=60, help="number of mutants; 0: all")
    add("--seed", type=int, default=1, help="seed of the sample")
    add("--language", choices=("lua", "python"), help="only mutants of this language")
    add("--package", action="append", metavar="DIR", help="only this package; may be repeated")
    add("--faults", action="store_true", help="run the hand-written faults in core places")
    add("--ids", type=Path, metavar="FILE", help="run the mutants with these ids, one per line")
    add("--list", action="store_true", help="print the selected mutants and exit")
    add("--root", type=Path, default=Path(), help="checkout to test (default: this one)")
    add("--python", type=Path, help="interpreter for the tests (default: ROOT/.venv/bin/python)")
    add("--tests", nargs="+", default=TESTS, metavar="PATH", help="test files and directories")
    add("--servers", nargs="+", default=SERVERS, metavar="NAME", help="servers by preference")
    add("--jobs", type=int, default=2, help="parallel test runs")
    add("--budget", type=float, default=120, metavar="S", help="seconds of tests per mutant")
    add("--map", type=Path, metavar="FILE", help="recorded calls of the tests, made if missing")
    add("--out", type=Path, metavar="FILE", help="results, JSON lines; known ids are not repeated")
    add("--control", action="store_true", help="change nothing: every mutant must survive")
    add("--report", type=Path, metavar="FILE", help="write a report in Markdown")
    return parser.parse_args()


def select(options: argparse.Namespace, root: Path) -> list[Mutant]:
    if options.faults:
        return faults_in(root)
    packages = [
        *(PYTHON_PACKAGES if options.language != "lua" else ()),
        *(LUA_PACKAGES if options.language != "python" else ()),
    ]
    if options.ids:
        wanted = options.ids.read_text().split()
        known = {mutant.id: mutant for mutant in mutants_of(root, PYTHON_PACKAGES + LUA_PACKAGES)}
        for name in wanted:
            if name not in known:
                print(f"{name}: no such mutant in {root}", file=sys.stderr)
        return [known[name] for name in wanted if name in known]
    chosen = [name for name in packages if not options.package or name in options.package]
    found = mutants_of(root, chosen)
    return sample(found, options.sample, options.seed) if options.sample else found


def record(options: argparse.Namespace, root: Path, checkouts: list[Checkout]) -> dict[str, Any]:
    """Loads the map of the tests, or makes it with one run of the tests."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    key = f"{root}{head}{options.tests}{options.servers}"
    name = f"sluice-mutants-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
    cached: Path = options.map or Path(tempfile.gettempdir()) / name
    if cached.exists():
        recorded: dict[str, Any] = json.loads(cached.read_text())
        return recorded
    files = [
        path.relative_to(root).as_posix()
        for package in PYTHON_PACKAGES
        for path in (root / package).rglob("*.py")
    ]
    tests = [
        path.relative_to(root).as_posix()
        for name in options.tests
        for path in ([root / name] if (root / name).is_file() else (root / name).rglob("test_*.py"))
    ]
    print(f"recording {len(tests)} test files, kept in {cached}", file=sys.stderr)
    with ThreadPoolExecutor(len(checkouts)) as pool:
        shares = [tests[number :: len(checkouts)] for number in range(len(checkouts))]
        parts = list(pool.map(lambda pair: pair[0].record(pair[1], files), zip(checkouts, shares)))
    merged = {name: entry for part in parts for name, entry in part.items()}
    cached.write_text(json.dumps(merged))
    return merged


def main() -> int:
    options = arguments()
    root: Path = options.root.resolve()
    mutants = select(options, root)
    if options.list:
        for mutant in mutants:
            print(mutant.id)
        return 0
    out: Path = options.out or Path(tempfile.mkdtemp(prefix="sluice-mutants-")) / "results.jsonl"
    results = [Result(**json.loads(line)) for line in out.open()] if out.exists() else []
    known = {result.id for result in results}
    python = options.python or root / ".venv/bin/python"
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        checkouts: queue.SimpleQueue[Checkout] = queue.SimpleQueue()
        made = [
            Checkout(root, Path(directory) / str(number), python.absolute(), options.servers)
            for number in range(options.jobs)
        ]
        tests = TestMap(root, record(options, root, made))
        for checkout in made:
            checkouts.put(checkout)

        def run(mutant: Mutant) -> Result:
            if options.control:
                mutant = replace(mutant, apply=(root / mutant.path).read_text)
            steps = tests.steps(mutant, options.budget)
            seconds = [sum(tests.seconds[name] for name in step.tests) for step in steps]
            timeouts = [TIMEOUT_S + TIMEOUT_FACTOR * expected for expected in seconds]
            checkout = checkouts.get()
            try:
                return checkout.run(mutant, steps, timeouts)
            finally:
                checkouts.put(checkout)

        left = [mutant for mutant in mutants if mutant.id not in known]
        with ThreadPoolExecutor(options.jobs) as pool, out.open("a") as file:
            for number, result in enumerate(pool.map(run, left), 1):
                results.append(result)
                file.write(result.to_json() + "\n")
                file.flush()
                print(
                    f"{number}/{len(left)} {result.status} {result.seconds} s "
                    f"{result.path}:{result.line} {result.id.split(':')[1]} {result.killer}",
                    flush=True,
                )
    chosen = {mutant.id for mutant in mutants}
    results = [result for result in results if result.id in chosen]
    print("\n".join(["", *table(results), ""]))
    for result in results:
        if result.status == "survived":
            print(f"survived: {result.path}:{result.line} {result.id}\n{result.change}")
    print(f"results: {out}")
    if options.report:
        options.report.write_text(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
