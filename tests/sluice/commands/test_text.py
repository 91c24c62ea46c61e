"""Safe text, number formats, tables and sparklines."""

from __future__ import annotations

import ast
import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.common.text import plural
from sluice.terminal.render import Colors, Column, sparkline, table_lines
from sluice.terminal.text import (
    as_json,
    count_of,
    display_width,
    format_ago,
    format_bytes,
    format_duration,
    pad,
    printable,
    printable_lines,
    truncate,
)
from tests.support.processes.gateway import ROOT

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text())
def test_control_characters_are_removed(text: str) -> None:
    assert printable(text).isprintable()
    assert all(char.isprintable() or char in "\n\t" for char in printable_lines(text))


@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_json_is_printable_and_equal(value: object, indent: int | None) -> None:
    text = as_json(value, indent=indent)
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value


def test_surrogates_and_del_are_escaped() -> None:
    assert as_json("\ud800\x7f\x9b") == '"\\ud800\\u007f\\u009b"'


@given(st.text(st.characters(exclude_categories=["C"])), st.integers(0, 20))
def test_truncate_and_pad_respect_the_width(text: str, columns: int) -> None:
    assert display_width(truncate(text, columns)) <= columns
    assert display_width(pad(text, columns)) >= columns


def test_wide_characters_count_twice_and_combining_ones_not() -> None:
    assert display_width("日本") == 4
    assert display_width("e\u0301") == 1
    assert truncate("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("ms", "expected"),
    [(None, "-"), (0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (120_000, "2 min"),
     (7_200_000, "2 h"), (3 * 86_400_000, "3 d")],
)  # fmt: skip
def test_format_duration(ms: float | None, expected: str) -> None:
    assert format_duration(ms) == expected


def test_format_bytes_and_ago() -> None:
    assert [format_bytes(n) for n in (None, 5, 2048, 5 << 20, 3 << 30)] == [
        "-", "5 B", "2.0 KB", "5.0 MB", "3.0 GB",
    ]  # fmt: skip
    assert format_ago(None) == "-"
    assert format_ago(1000, 1500) == "now"
    assert format_ago(1000, 6000) == "5.0 s ago"


def test_count_of_agrees_with_the_noun() -> None:
    for count in (count_of, plural):
        assert [count(number, "job") for number in (0, 1, 2)] == ["0 jobs", "1 job", "2 jobs"]
        assert [count(number, "try", "tries") for number in (1, 2)] == ["1 try", "2 tries"]


#: Nouns that commands print with a number.
NOUNS = (
    "attempts", "connections", "consumers", "documents", "events", "failures", "files", "images",
    "items", "jobs", "keys", "letters", "notes", "partitions", "passages", "pieces", "replicas",
    "servers", "settings", "slots", "sources", "times", "tries", "variables", "violations",
    "warnings", "workers",
)  # fmt: skip


@pytest.mark.parametrize("package", ["sluice", "ops"])
def test_numbers_before_nouns_use_count_of(package: str) -> None:
    """Numbers with nouns must come from `count_of` or `plural`, so that `1 jobs` cannot occur."""
    plural = re.compile(rf" (?:\w+ )?(?:{'|'.join(NOUNS)})\b")
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            values = node.values if isinstance(node, ast.JoinedStr) else []
            for value, text in pairwise(values):
                is_number = isinstance(value, ast.FormattedValue)
                if is_number and plural.match(str(getattr(text, "value", ""))):
                    found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


COLUMNS = (Column("A", lambda row: row[0]), Column("B", lambda row: row[1], right=True))


def test_table_width() -> None:
    rows = [("x" * 30, 1), ("y", None)]
    assert list(table_lines(COLUMNS, rows, Colors(False), None)) == [
        f"{'A':30}  B",
        f"{'x' * 30}  1",
        f"{'y':30}  -",
    ]
    narrow = list(table_lines(COLUMNS, rows, Colors(False), 20))
    assert max(map(len, narrow)) == 20
    assert "…" in narrow[1]


def test_table_cells_are_one_line() -> None:
    [_, row] = table_lines(COLUMNS, [("a\nb\x1b[2J", 1)], Colors(True), None)
    assert row == "a?b?[2J  1"


def test_sparkline() -> None:
    assert sparkline([0, 1, None, 4], 10) == "▁▃ █"
    assert sparkline([], 5) == ""
    assert sparkline([0, 0], 5) == "▁▁"
    assert len(sparkline(list(range(1000)), 40)) == 40
    # Peaks stay visible.
    assert "█" in sparkline([0.0] * 500 + [9.0] + [0.0] * 500, 10)
    assert sparkline([1, 2], 0) == ""
