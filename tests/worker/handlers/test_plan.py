"""The task `plan`: valid plans from any answer of a model."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.worker.handlers.plan import InvalidPlan, PlanPayload, parse_plan
from tests.support.worker.model_tasks import Hang, MakeScripted, joined, says

pytestmark = pytest.mark.fakeredis_only

TASK = "plan"
TEA = {
    "steps": [
        {"title": "Boil water", "detail": "In the kettle.", "depends_on": []},
        {"title": "Warm the pot", "detail": "", "depends_on": [1]},
        {"title": "Brew", "detail": "Four minutes.", "depends_on": [1, 2]},
    ]
}


async def test_a_goal_becomes_steps(scripted: MakeScripted) -> None:
    worker = scripted(json.dumps(TEA))
    result, events = await worker.run(goal="tea", context="There is a kettle.", max_steps=5)
    assert result["steps"] == [
        {"id": "1", "title": "Boil water", "detail": "In the kettle."},
        {"id": "2", "title": "Warm the pot", "depends_on": ["1"]},
        {"id": "3", "title": "Brew", "detail": "Four minutes.", "depends_on": ["1", "2"]},
    ]
    assert result["text"] == json.dumps(TEA) == joined(events, "worker.plan")
    assert (result["finish_reason"], result["model"]) == ("stop", "scripted")
    assert "warnings" not in result
    [request] = worker.model.requests
    assert "at most 5 steps" in request.messages[0]["content"]
    assert request.messages[1]["content"] == "There is a kettle.\n\nGoal: tea"
    schema = request.response_format["json_schema"]["schema"]  # type: ignore[index]
    steps = schema["properties"]["steps"]
    assert (steps["minItems"], steps["maxItems"]) == (1, 5)
    assert steps["items"]["properties"]["depends_on"]["items"]["enum"] == [1, 2, 3, 4]
    assert (request.max_tokens, request.temperature) == (96 + 5 * 160, 0.3)


def test_a_plan_of_one_step_depends_on_nothing() -> None:
    form = PlanPayload(goal="a", max_steps=1).response_format()
    step = form["json_schema"]["schema"]["properties"]["steps"]["items"]
    assert list(step["properties"]) == step["required"] == ["title", "detail"]


async def test_an_invalid_plan_is_requested_again(scripted: MakeScripted) -> None:
    circle = {"steps": [{"title": "a", "depends_on": [2]}, {"title": "b", "depends_on": [1]}]}
    worker = scripted(json.dumps(circle), json.dumps(TEA))
    result, events = await worker.run(goal="tea")
    assert len(result["steps"]) == 3
    assert "depend on each other" in worker.model.last_message(1)
    assert joined(events, "worker.plan") == result["text"] == json.dumps(TEA)


async def test_a_second_invalid_plan_is_repaired_with_warnings(scripted: MakeScripted) -> None:
    depends = {"a": [1, 2, 9], "b": [1], "c": [2, 2, "2"]}
    steps = [{"title": title, "depends_on": each} for title, each in depends.items()]
    odd = json.dumps({"steps": steps})
    result, _ = await scripted(odd, odd).run(goal="tea")
    assert result["steps"] == [
        {"id": "1", "title": "a"},
        {"id": "2", "title": "b", "depends_on": ["1"]},
        {"id": "3", "title": "c", "depends_on": ["2"]},
    ]
    assert result["warnings"] == [
        "step '1' depends on '9', which does not exist",
        "step '1' and '2' depend on each other",
    ]


async def test_too_many_steps_twice_are_cut(scripted: MakeScripted) -> None:
    many = json.dumps({"steps": [{"title": f"t{n}"} for n in range(9)]})
    result, _ = await scripted(many, many).run(goal="tea", max_steps=2)
    assert [step["title"] for step in result["steps"]] == ["t0", "t1"]
    assert result["warnings"] == ["there are 9 steps, 2 at most"]


@pytest.mark.parametrize("said", ["I would rather not.", '{"steps": []}', '{"a": 1}', "[[]]"])
async def test_two_answers_without_a_plan_are_an_error(scripted: MakeScripted, said: str) -> None:
    error = await scripted(said, said).fail(goal="tea")
    assert error["kind"] == "model_answer_invalid"
    assert said in error["message"]


async def test_cut_off(scripted: MakeScripted) -> None:
    error = await scripted(says(json.dumps(TEA)[:60], "length")).fail(goal="tea")
    assert error["kind"] == "model_answer_invalid"
    assert "cut off" in error["message"]


async def test_canceled_in_the_middle(scripted: MakeScripted) -> None:
    kept = await scripted(Hang('{"steps": [')).cancel_in_the_middle(goal="tea")
    assert (kept["text"], kept["finish_reason"]) == ('{"steps": [', "canceled")
    assert "steps" not in kept


# -- reading plans --------------------------------------------------------------------------------


def titles(text: str) -> list[tuple[str, str, str]]:
    return [(step.id, step.title, step.detail) for step in parse_plan(text, 50).steps]


def test_ids_of_the_model_are_kept_if_unique() -> None:
    said = [
        {"id": "buy", "title": "Buy tea"},
        {"id": 2, "title": "Brew", "depends_on": ["buy"]},
        {"id": "drink", "title": "Drink", "depends_on": ["buy", 2]},
    ]
    made = parse_plan(json.dumps(said), 8)
    assert [step.id for step in made.steps] == ["buy", "2", "drink"]
    assert made.steps[2].depends_on == ["buy", "2"]
    said[2]["id"] = "buy"
    ids = [step.id for step in parse_plan(json.dumps(said), 8, lenient=True).steps]
    assert ids == ["1", "2", "3"]


def test_steps_follow_those_they_depend_on() -> None:
    said = [{"title": "b", "depends_on": [2]}, {"title": "a"}, {"title": "c", "depends_on": [1]}]
    assert [step.title for step in parse_plan(json.dumps(said), 8).steps] == ["a", "b", "c"]


def test_a_step_without_a_title_uses_its_detail() -> None:
    said = [{"title": " ", "detail": "Boil\nwater"}, {"title": "", "detail": ""}, "Brew"]
    assert titles(json.dumps(said)) == [("1", "Boil water", ""), ("2", "Brew", "")]


@pytest.mark.parametrize(
    "said",
    [
        "Here is a plan:\n\n1. **Boil water**: in the kettle\n2. Brew\n   for four minutes\n",
        "1) Boil water - in the kettle\n\n2) Brew: for four minutes",
        "Step 1: Boil water: in the kettle\nStep 2: Brew — for four minutes",
        "<think>1. nonsense</think>- Boil water: in the kettle\n- Brew: for four minutes",
        "### 1. Boil water\nin the kettle\n### 2. Brew\nfor four minutes",
    ],
)
def test_lists_are_plans_too(said: str) -> None:
    steps = [("1", "Boil water", "in the kettle"), ("2", "Brew", "for four minutes")]
    assert titles(said) == steps


NAMES = st.sampled_from(["steps", "id", "title", "detail", "depends_on", "x"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@given(anything, st.integers(1, 5), st.booleans())
def test_any_answer_gives_a_valid_plan_or_an_error(value: Any, most: int, lenient: bool) -> None:
    try:
        made = parse_plan(json.dumps({"steps": value}), most, lenient)
    except InvalidPlan:
        return
    done: set[str] = set()
    for step in made.steps:
        assert step.id not in done
        assert step.title
        assert set(step.depends_on) <= done
        done.add(step.id)
    assert 1 <= len(done) <= most


@given(st.text())
def test_any_text_gives_a_plan_or_an_error(text: str) -> None:
    with contextlib.suppress(InvalidPlan):
        assert parse_plan(text, 50, lenient=True).steps
