"""Task limits in settings: groups of tasks share their slots, and errors are specific."""

from __future__ import annotations

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.limits import TaskLimit, group_name, parse_limits


def test_one_task_and_several() -> None:
    limits = parse_limits(" chat + plan+code : 1 , embed:4,")
    assert limits == (
        TaskLimit(frozenset({"chat", "plan", "code"}), 1),
        TaskLimit(frozenset({"embed"}), 4),
    )
    assert parse_limits("") == parse_limits(" , ") == ()


def test_the_name_does_not_depend_on_the_order() -> None:
    for text in ("code+plan+chat:2", "chat+code+plan:2", "plan+chat+code:2"):
        [limit] = parse_limits(text)
        assert limit.name == "chat+plan+code"
    assert JobKeys().running("chat+plan+code") == "jobs:stream:running:chat+plan+code"
    assert group_name({"rag"}) == "rag"
    assert group_name(["dance", "embed", "chat"]) == "chat+embed+dance"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dance:1", "names an unknown task 'dance'"),
        ("chat+dance:1", "names an unknown task 'dance'"),
        ("chat+:1", "names an unknown task ''"),
        (":1", "names an unknown task ''"),
        ("chat", "a number from 1"),
        ("chat:0", "a number from 1"),
        ("chat:-1", "a number from 1"),
        ("chat+plan:x", r"such as chat\+plan:1"),
        ("chat:1,chat:2", "chat is limited twice"),
        ("chat+plan:1,code+plan:1", "plan is limited twice"),
        ("chat+chat:1", "chat is limited twice"),
    ],
)
def test_an_invalid_setting_names_the_problem(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_limits(text)
