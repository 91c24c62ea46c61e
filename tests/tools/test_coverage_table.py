"""The table of `make coverage`."""

from __future__ import annotations

from typing import Any

from tools.coverage_table import table


def summary(lines: int, of_lines: int, branches: int = 0, of_branches: int = 0) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": lines,
            "num_statements": of_lines,
            "covered_branches": branches,
            "num_branches": of_branches,
        }
    }


def test_modules_are_summed_by_package() -> None:
    files = {
        "common/jobs/store.py": summary(9, 10, 1, 4),
        "common/jobs/audit/rules.py": summary(0, 10, 1, 4),
        "worker/features/rag/reading.py": summary(1, 2),
        "ops/keys.py": summary(1, 1),
    }
    assert table({"files": files})[2:] == [
        "| common/jobs | 20 | 45.0 % | 25.0 % |",
        "| ops | 1 | 100.0 % | – |",
        "| worker/features/rag | 2 | 50.0 % | – |",
        "| total | 23 | 47.8 % | 25.0 % |",
    ]
