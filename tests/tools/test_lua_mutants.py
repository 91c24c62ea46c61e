"""Mutations of Lua scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutants.lua import LuaMutator
from tools.mutants.mutant import identify

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "common" / "jobs" / "lua").rglob("*.lua"))
SCRIPT = """\
-- if a comment > mentions conditions then nothing changes
local record = redis.call('HMGET', job, $JOB_STATUS)
if record[1] ~= attempt or
    record[2] == 'a > b' then -- a fence
  return { $ANSWER_LOST }
end
redis.call('HSET', job, $JOB_STATUS, status,
  $JOB_RESULT, result)
redis.call('EXPIRE', job, ttl) -- must come last
count = count + 1
acknowledge(group, message_id)
"""


@pytest.fixture(scope="module")
def mutator() -> LuaMutator:
    return LuaMutator()


def changed(mutator: LuaMutator, operator: str) -> list[list[str]]:
    """Per mutant of the operator, the lines that are not in the original."""
    known = set(SCRIPT.splitlines())
    return [
        [line for line in change.apply().splitlines() if line not in known]
        for change in mutator.changes(SCRIPT)
        if change.operator == operator
    ]


def dropped(mutator: LuaMutator, operator: str) -> list[list[str]]:
    """Per mutant of the operator, the lines that it lacks."""
    return [
        [line for line in SCRIPT.splitlines() if line not in change.apply().splitlines()]
        for change in mutator.changes(SCRIPT)
        if change.operator == operator
    ]


def test_conditions_are_negated(mutator: LuaMutator) -> None:
    assert changed(mutator, "negate") == [
        ["if not (record[1] ~= attempt or", "    record[2] == 'a > b') then -- a fence"]
    ]


def test_comparisons_are_changed_outside_strings(mutator: LuaMutator) -> None:
    assert changed(mutator, "compare") == [
        ["if record[1] == attempt or"],
        ["    record[2] ~= 'a > b' then -- a fence"],
    ]


def test_and_and_or_are_exchanged(mutator: LuaMutator) -> None:
    assert changed(mutator, "logic") == [["if record[1] ~= attempt and"]]


@pytest.mark.parametrize(
    ("operator", "lines"),
    [
        ("drop-return", ["  return { $ANSWER_LOST }"]),
        (
            "drop-call",
            ["redis.call('HSET', job, $JOB_STATUS, status,", "  $JOB_RESULT, result)"],
        ),
        ("drop-expire", ["redis.call('EXPIRE', job, ttl) -- must come last"]),
        ("drop-assignment", ["count = count + 1"]),
        ("drop-ack", ["acknowledge(group, message_id)"]),
    ],
)
def test_a_whole_statement_is_dropped(mutator: LuaMutator, operator: str, lines: list[str]) -> None:
    assert dropped(mutator, operator) == [lines]


def test_adjacent_statements_are_swapped(mutator: LuaMutator) -> None:
    [first, *_] = [change for change in mutator.changes(SCRIPT) if change.operator == "swap"]
    assert first.line == 7
    assert first.apply().splitlines()[6:9] == [
        "redis.call('EXPIRE', job, ttl) -- must come last",
        "redis.call('HSET', job, $JOB_STATUS, status,",
        "  $JOB_RESULT, result)",
    ]


def test_an_id_does_not_depend_on_other_lines(mutator: LuaMutator) -> None:
    longer = f"local more = 1\n{SCRIPT}"
    ids = [mutant.id for mutant in identify("a.lua", SCRIPT, mutator.changes(SCRIPT))]
    later = [mutant.id for mutant in identify("a.lua", longer, mutator.changes(longer))]
    assert ids == later
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_have_valid_mutants(mutator: LuaMutator, path: Path) -> None:
    source = path.read_text()
    assert mutator.is_valid(source)
    changes = list(mutator.changes(source))
    assert changes
    for change in changes:
        text = change.apply()
        assert text != source
        assert mutator.is_valid(text)
