"""Text that is safe to show, tables that fit, and curves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.terminal.paint import Paint
from client.terminal.spark import spark
from client.terminal.table import Column, lines
from client.terminal.text import (
    ago,
    as_json,
    cut,
    duration,
    harmless,
    padded,
    printable,
    size,
    width,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert printable(text).isprintable()
    assert all(letter.isprintable() or letter in "\n\t" for letter in harmless(text))


@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_json_is_safe_to_show_and_says_the_same(value: object, indent: int | None) -> None:
    text = as_json(value, indent=indent)
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value


def test_lone_surrogates_and_del_are_escaped() -> None:
    assert as_json("\ud800\x7f\x9b") == '"\\ud800\\u007f\\u009b"'


@given(st.text(st.characters(exclude_categories=["C"])), st.integers(0, 20))
def test_what_is_cut_fits(text: str, columns: int) -> None:
    assert width(cut(text, columns)) <= columns
    assert width(padded(text, columns)) >= columns


def test_wide_letters_count_twice() -> None:
    assert width("日本") == 4
    assert cut("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("ms", "words"),
    [(None, "-"), (0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (120_000, "2 min"),
     (7_200_000, "2 h"), (3 * 86_400_000, "3 d")],
)  # fmt: skip
def test_times_as_people_say_them(ms: float | None, words: str) -> None:
    assert duration(ms) == words


def test_sizes_and_ages() -> None:
    assert [size(n) for n in (None, 5, 2048, 5 << 20, 3 << 30)] == [
        "-", "5 B", "2.0 KB", "5.0 MB", "3.0 GB",
    ]  # fmt: skip
    assert ago(None) == "-"
    assert ago(1000, 1500) == "now"
    assert ago(1000, 6000) == "5.0 s ago"


COLUMNS = (Column("A", lambda row: row[0]), Column("B", lambda row: row[1], right=True))


def test_a_table_is_as_wide_as_it_must_be_and_as_it_may() -> None:
    rows = [("x" * 30, 1), ("y", None)]
    assert list(lines(COLUMNS, rows, Paint(False), None)) == [
        f"{'A':30}  B",
        f"{'x' * 30}  1",
        f"{'y':30}  -",
    ]
    narrow = list(lines(COLUMNS, rows, Paint(False), 20))
    assert max(map(len, narrow)) == 20
    assert "…" in narrow[1]


def test_a_tables_cells_are_one_line_each() -> None:
    [_, row] = lines(COLUMNS, [("a\nb\x1b[2J", 1)], Paint(True), None)
    assert row == "a?b?[2J  1"


def test_curves() -> None:
    assert spark([0, 1, None, 4], 10) == "▁▃ █"
    assert spark([], 5) == ""
    assert spark([0, 0], 5) == "▁▁"
    assert len(spark(list(range(1000)), 40)) == 40
    # A peak is not averaged away.
    assert "█" in spark([0.0] * 500 + [9.0] + [0.0] * 500, 10)
    assert spark([1, 2], 0) == ""
