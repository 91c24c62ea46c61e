"""Pytest plugin: records which functions each test calls, or runs chosen tests in order.

It is loaded with `-p mutants_plugin` in the interpreter of the tested checkout, so it imports
nothing of this package.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PLAN: dict[str, Any] = json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())
#: Servers in order of preference: a test that has a variant per server runs on one of them.
_SERVERS: list[str] = _PLAN["servers"]
_SERVER = re.compile(r"(?<=[\[-])(?:fakeredis|(?:redis|valkey)-[\w.]+?)(?=[\]-])")
_found: dict[str, dict[str, Any]] = {}
_current: set[str] = set()


@pytest.hookimpl(trylast=True)  # after the tiers and servers were chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "tests" in _PLAN:
        rank = {_without_server(name): number for number, name in enumerate(_PLAN["tests"])}
        named = set(_PLAN["tests"])
        chosen = [
            item
            for item in items
            if _without_server(item.nodeid) in rank
            and (item.nodeid in named) != _PLAN["other_servers"]
            and (item.nodeid in named or _preference(item) < len(_SERVERS))
        ]
        chosen.sort(key=lambda item: rank[_without_server(item.nodeid)])
    else:
        variants: dict[str, list[pytest.Item]] = {}
        for item in items:
            variants.setdefault(_without_server(item.nodeid), []).append(item)
        chosen = [min(same, key=_preference) for same in variants.values()]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def _without_server(name: str) -> str:
    return _SERVER.sub("*", name)


def _preference(item: pytest.Item) -> int:
    server = _SERVER.search(item.nodeid)
    name = server[0] if server else ""
    return _SERVERS.index(name) if name in _SERVERS else len(_SERVERS)


if "out" in _PLAN:
    #: The folders are imported through links in `sluice`.
    _TARGETS = {str(Path.cwd() / "sluice" / path): path for path in _PLAN["files"]}

    def _on_call(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename in _TARGETS:
            _current.add(f"{_TARGETS[code.co_filename]}:{code.co_firstlineno}")

    def pytest_configure(config: pytest.Config) -> None:
        """Records the operations of scripts."""
        from sluice.common.redis.scripts import Record

        create = Record.__new__

        def create_and_record(cls: Any, operation: str, *args: Any, **named: Any) -> Any:
            _current.add(f"lua:{operation}")
            return create(cls, operation, *args, **named)

        Record.__new__ = create_and_record  # type: ignore[method-assign,assignment]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
        _current.clear()
        threading.settrace(_on_call)
        sys.settrace(_on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            if item.nodeid in _found:
                _found[item.nodeid]["calls"] = sorted(_current)

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        entry = _found.setdefault(report.nodeid, {"seconds": 0.0, "passed": True, "calls": []})
        entry["seconds"] += report.duration
        entry["passed"] = entry["passed"] and report.passed

    def pytest_sessionfinish() -> None:
        passed = {name: entry for name, entry in _found.items() if entry["passed"]}
        Path(_PLAN["out"]).write_text(json.dumps(passed))
