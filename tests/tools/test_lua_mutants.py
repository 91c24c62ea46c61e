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


def lines_changed(mutator: LuaMutator, operator: str) -> list[tuple[list[str], list[str]]]:
    """Per mutant of the operator, the lines that it lacks, and those that it adds."""
    original = SCRIPT.splitlines()
    found = []
    for change in mutator.changes(SCRIPT):
        if change.operator == operator:
            mutant = change.apply().splitlines()
            dropped = [line for line in original if line not in mutant]
            found.append((dropped, [line for line in mutant if line not in original]))
    return found


@pytest.mark.parametrize(
    ("operator", "added"),
    [
        (
            "negate",
            [["if not (record[1] ~= attempt or", "    record[2] == 'a > b') then -- a fence"]],
        ),
        (  # not in strings
            "compare",
            [["if record[1] == attempt or"], ["    record[2] ~= 'a > b' then -- a fence"]],
        ),
        ("logic", [["if record[1] ~= attempt and"]]),
    ],
)
def test_a_condition_is_changed(mutator: LuaMutator, operator: str, added: list[list[str]]) -> None:
    assert [new for _, new in lines_changed(mutator, operator)] == added


@pytest.mark.parametrize(
    ("operator", "lines"),
    [
        ("drop-return", ["  return { $ANSWER_LOST }"]),
        ("drop-call", ["redis.call('HSET', job, $JOB_STATUS, status,", "  $JOB_RESULT, result)"]),
        ("drop-expire", ["redis.call('EXPIRE', job, ttl) -- must come last"]),
        ("drop-assignment", ["count = count + 1"]),
        ("drop-ack", ["acknowledge(group, message_id)"]),
    ],
)
def test_a_whole_statement_is_dropped(mutator: LuaMutator, operator: str, lines: list[str]) -> None:
    assert [old for old, _ in lines_changed(mutator, operator)] == [lines]


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
