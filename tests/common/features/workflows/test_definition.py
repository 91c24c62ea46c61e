"""Workflow definitions: valid ones are accepted, invalid ones rejected with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from common.contracts.workflow.statuses import StepKind
from common.features.workflows.definitions import MOST_STEPS, StepDefinition, WorkflowDefinition
from common.features.workflows.memory_first import DEFINITION

ONE = StepDefinition("one", "o", "thing", 1.0)


def test_a_definition_survives_a_json_round_trip() -> None:
    assert WorkflowDefinition.from_json(DEFINITION.to_json()) == DEFINITION


def test_steps_are_found_by_name_and_by_item_id() -> None:
    assert DEFINITION.step("summarize") is DEFINITION.steps[2]
    assert DEFINITION.step("nowhere") is None
    assert DEFINITION.step_of_item("sum_001") is DEFINITION.steps[2]
    assert DEFINITION.step_of_item("q_001") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "No Name"}, "write its name"),
        ({"prefix": "p_"}, "is not valid as a prefix"),
        ({"weight": 2.0}, "weight must be"),
        ({"weight": 0.5}, "sum to 0.5"),
        ({"reviews": "one"}, "only a review"),
        ({"kind": StepKind.REVIEW, "reviews": "zero"}, "earlier step that proposes"),
        ({"timeout_s": -1.0}, "timeout_s"),
        ({"timeout_s": "zz"}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": {"a": 1}}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"options_schema": [1]}, "options_schema"),
    ],
)
def test_an_invalid_step_is_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WorkflowDefinition("flow", (replace(ONE, **changes),))


def test_names_and_prefixes_are_unique() -> None:
    half = replace(ONE, weight=0.5)
    for second in (half, replace(half, name="two"), replace(half, prefix="t")):
        with pytest.raises(ValueError, match="another step"):
            WorkflowDefinition("flow", (half, second))


@pytest.mark.parametrize("count", [0, MOST_STEPS + 1])
def test_the_number_of_steps_is_limited(count: int) -> None:
    steps = tuple(
        replace(ONE, name=f"s{n}", prefix=f"p{n}", weight=1 / max(count, 1)) for n in range(count)
    )
    with pytest.raises(ValueError, match="steps"):
        WorkflowDefinition("flow", steps)


@pytest.mark.parametrize("name", ["", "Flow", "1flow", "a" * 65, "fl ow"])
def test_an_invalid_workflow_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="not a workflow name"):
        WorkflowDefinition(name, (ONE,))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"name":"x","steps":3}', b'{"name":"x"}'])
def test_invalid_json_is_rejected(raw: bytes) -> None:
    with pytest.raises(ValueError):
        WorkflowDefinition.from_json(raw)


def test_invalid_limits_in_stored_definitions_are_rejected() -> None:
    stored = json.loads(DEFINITION.to_json())
    stored["steps"][0]["max_attempts"] = {"a": 1}
    with pytest.raises(ValueError, match="max_attempts"):
        WorkflowDefinition.from_json(json.dumps(stored).encode())
