"""Caps by task, as settings write them: `chat+plan+code:1,embed:4`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from common.contracts.jobs import TASKS

_AND: Final = "+"


class TaskLimit(NamedTuple):
    """So many places, which some tasks share."""

    tasks: frozenset[str]
    places: int

    @property
    def name(self) -> str:
        """As settings write it, but always in the contract's order: workers meet under it."""
        return group_name(self.tasks)


def group_name(tasks: Iterable[str]) -> str:
    """`chat+plan+code`, in the contract's order; what the contract does not know comes last."""
    named = set(tasks)
    return _AND.join([*(task for task in TASKS if task in named), *sorted(named - set(TASKS))])


def parse_limits(text: str) -> tuple[TaskLimit, ...]:
    """The limits that a setting names; ValueError says what is wrong with it."""
    limits: list[TaskLimit] = []
    limited: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        names, _, number = (piece.strip() for piece in part.partition(":"))
        tasks = [task.strip() for task in names.split(_AND)]
        for task in tasks:
            if task not in TASKS:
                raise ValueError(
                    f"{part!r} names no task: {task!r}; the contract knows {', '.join(TASKS)}"
                )
            if task in limited:
                raise ValueError(f"{task} is limited twice; which one is meant?")
            limited.add(task)
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(f"{part!r} must be tasks and a number from 1, such as {names}:1")
        limits.append(TaskLimit(frozenset(tasks), int(number)))
    return tuple(limits)
