"""Selects mutants by a seeded sample, and the tests that can detect a mutant."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tools.mutants import python
from tools.mutants.lua import LuaMutator
from tools.mutants.mutant import Mutant, identify

#: Directories with mutated code; each is a stratum of the sample.
PYTHON_PACKAGES = (
    "common/jobs",
    "common/access",
    "worker/execution",
    "worker/queue",
    "gateway/events",
    "gateway/auth",
)
LUA_PACKAGES = tuple(f"common/jobs/lua/{part}" for part in ("attempt", "gateway", "queue", "lib"))
#: Tests recorded by default: the fast tests of the packages above and of their users.
TESTS = (
    *(f"tests/common/{part}" for part in ("jobs", "access", "redis")),
    *(f"tests/common/features/{part}" for part in ("images", "workflows")),
    *(f"tests/worker/{part}" for part in ("execution", "queue", "monitoring")),
    *(f"tests/gateway/{part}" for part in ("auth", "dashboard", "events", "jobs", "admin", "http")),
    "tests/gateway/partitions",
    "tests/gateway/test_smoke.py",
)
#: Size of the first step, which runs the nearest tests.
FIRST_FILES, FIRST_TESTS = 4, 60
_LUA_PART = re.compile(
    r"^(?:local function (?P<name>\w+)|operations\[\$\w+\] = function).*?^end$",
    re.MULTILINE | re.DOTALL,
)


def package_of(path: str) -> str:
    packages = LUA_PACKAGES if path.endswith(".lua") else PYTHON_PACKAGES
    return next(package for package in packages if path.startswith(package + "/"))


def mutants_of(root: Path, packages: Iterable[str]) -> list[Mutant]:
    """Every mutant of the packages."""
    lua = LuaMutator()
    found: list[Mutant] = []
    for package in packages:
        suffix = "*.lua" if package in LUA_PACKAGES else "*.py"
        for path in sorted((root / package).rglob(suffix)):
            source = path.read_text()
            changes = lua.changes(source) if suffix == "*.lua" else python.changes(source)
            found += identify(path.relative_to(root).as_posix(), source, changes)
    return found


def sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """A sample with equal shares of the packages, as far as they have enough mutants."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}:{mutant.id}".encode()).hexdigest()

    strata: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(mutants, key=rank):
        strata[package_of(mutant.path)].append(mutant)
    chosen: list[Mutant] = []
    left = size
    by_size = sorted(strata.values(), key=len)
    for number, stratum in enumerate(by_size):
        share = min(len(stratum), left // (len(by_size) - number))
        chosen += stratum[:share]
        left -= share
    return sorted(chosen, key=rank)


class Step(NamedTuple):
    """Tests that run in one process, in this order."""

    tests: list[str]
    #: True: the same tests, each on the servers for which it is not named.
    other_servers: bool


class TestMap:
    """Which tests call which functions and script operations, and how long each test takes."""

    __test__ = False

    def __init__(self, root: Path, recorded: dict[str, dict[str, Any]]) -> None:
        self._root = root
        self.seconds = {name: entry["seconds"] for name, entry in recorded.items()}
        self._callers: dict[str, set[str]] = defaultdict(set)
        for name, entry in recorded.items():
            for call in entry["calls"]:
                self._callers[call].add(name)
                self._callers[call.partition(":")[0]].add(name)

    def steps(self, mutant: Mutant, budget_s: float) -> list[Step]:
        """The nearest tests, then the others in the budget, then the nearest on other servers."""
        callers = self._callers_of(mutant)
        files: dict[str, list[str]] = defaultdict(list)
        for name in sorted(callers, key=self.seconds.__getitem__):
            files[name.partition("::")[0]].append(name)

        def rank(file: str) -> tuple[int, float]:
            path = PurePosixPath(file)
            stem = PurePosixPath(mutant.path).stem
            package = package_of(mutant.path).partition("/lua")[0]
            near = 0 if stem in path.stem else 1 if file.startswith(f"tests/{package}/") else 2
            return near, sum(self.seconds[name] for name in files[file]) / len(files[file])

        first: list[str] = []
        second: list[str] = []
        for number, file in enumerate(sorted(files, key=rank)):
            enough = number >= FIRST_FILES or len(first) >= FIRST_TESTS
            (second if enough else first).extend(files[file])
        left = budget_s
        affordable = []
        for name in second:
            left -= self.seconds[name]
            if left > 0:
                affordable.append(name)
        steps = (Step(first, False), Step(affordable, False), Step(first, True))
        return [step for step in steps if step.tests]

    def _callers_of(self, mutant: Mutant) -> set[str]:
        source = (self._root / mutant.path).read_text()
        if mutant.path.endswith(".lua"):
            operations = self._operations_at(mutant, source)
            return set().union(*(self._callers[f"lua:{name}"] for name in operations))
        function = python.function_at(source, mutant.line)
        called = self._callers[f"{mutant.path}:{function}"]
        return called or self._callers[mutant.path]

    def _operations_at(self, mutant: Mutant, source: str) -> set[str]:
        """The operations that use the function around the mutant; all, if there is no such."""
        paths = sorted(self._root.glob("common/**/lua/**/*.lua"))
        sources = [(path.stem, path.read_text()) for path in paths]
        parts = [(stem, part) for stem, text in sources for part in _LUA_PART.finditer(text)]
        at = sum(len(line) for line in source.splitlines(keepends=True)[: mutant.line - 1])
        around = [part for part in _LUA_PART.finditer(source) if part.start() <= at < part.end()]
        if not around:
            return {stem for stem, part in parts if not part["name"]}
        if not around[0]["name"]:
            return {PurePosixPath(mutant.path).stem}
        names: set[str] = {around[0]["name"]}
        size = 0
        while len(names) > size:
            size = len(names)
            used = re.compile(rf"\b(?:{'|'.join(names)})\b")
            names |= {part["name"] for _, part in parts if part["name"] and used.search(part[0])}
        return {stem for stem, part in parts if not part["name"] and used.search(part[0])}
