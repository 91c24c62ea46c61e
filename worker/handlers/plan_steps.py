"""Makes a plan of what a model said: steps with ids of their own, without loose ends or circles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.model.json_answers import NoJson, find_json, without_thoughts

#: Longer ids, titles and details are nobody's.
ID_CHARS = 64
TITLE_CHARS = 300
DETAIL_CHARS = 4000
#: Dependencies of a step that are looked at, and faults of a plan that are told.
MOST_DEPENDENCIES = 100
MOST_FAULTS = 10

_NUMBERED = re.compile(r"\s{0,8}(?:#{1,6}\s*)?(?:\*\*)?(?:step\s+)?\d{1,3}\s*[.):]\s+(.+)", re.I)
_BULLET = re.compile(r"\s{0,3}[-*•]\s+(.+)")
_TITLE_END = re.compile(r"(?::\s+|\s+[–—-]\s+)")


class BadPlan(ValueError):
    """It is none; the text says why."""


@dataclass
class Step:
    """One step of a plan."""

    id: str
    title: str
    detail: str = ""
    depends_on: list[str] = field(default_factory=list)

    def view(self) -> dict[str, Any]:
        """As results show it."""
        view: dict[str, Any] = {"id": self.id, "title": self.title}
        if self.detail:
            view["detail"] = self.detail
        if self.depends_on:
            view["depends_on"] = self.depends_on
        return view


@dataclass
class Plan:
    """Steps in an order that works, and what had to be left out of the answer."""

    steps: list[Step]
    warnings: list[str] = field(default_factory=list)


def read_plan(text: str, most: int, lenient: bool = False) -> Plan:
    """The plan in `text`; raises BadPlan. Leniently, what makes no sense is left out and told."""
    steps = _steps(text)
    faults: list[str] = []
    if len(steps) > most:
        faults.append(f"there are {len(steps)} steps, {most} at most")
        del steps[most:]
    faults += _drop_loose_ends(steps)
    ordered, circles = _without_circles(steps)
    faults = (faults + circles)[:MOST_FAULTS]
    if faults and not lenient:
        raise BadPlan("; ".join(faults))
    return Plan(ordered, faults)


def _steps(text: str) -> list[Step]:
    try:
        value = find_json(text)
    except NoJson as error:
        listed = _listed(without_thoughts(text))
        if not listed:
            raise BadPlan(str(error)) from None
        return listed
    # Some models wrap the list in an object, some do not.
    items = value.get("steps") if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise BadPlan("it has no list of steps")
    return _numbered([step for step in map(_read, items) if step is not None])


def _read(item: Any) -> tuple[str, Step, list[Any]] | None:
    """A step as the model has it: its id if it has one, and what it names as done before."""
    if isinstance(item, str):
        item = {"title": item}
    if not isinstance(item, Mapping):
        raise BadPlan("a step is neither an object nor a text")
    title, detail = _line(item.get("title")), _line(item.get("detail"))
    if not title:
        title, detail = detail, ""
    if not title:
        return None
    before = item.get("depends_on")
    before = before[:MOST_DEPENDENCIES] if isinstance(before, list) else []
    return _name(item.get("id")), Step("", title[:TITLE_CHARS], detail[:DETAIL_CHARS]), before


def _numbered(read: Sequence[tuple[str, Step, list[Any]]]) -> list[Step]:
    """The steps under the model's ids, or under their numbers where those are not unique."""
    if not read:
        raise BadPlan("it has no steps")
    ids = [own for own, _, _ in read]
    if not all(ids) or len(set(ids)) < len(ids):
        ids = [str(number) for number in range(1, len(read) + 1)]
    steps = []
    for step_id, (_, step, before) in zip(ids, read):
        step.id = step_id
        step.depends_on = list(dict.fromkeys(filter(None, map(_name, before))))
        steps.append(step)
    return steps


def _drop_loose_ends(steps: list[Step]) -> list[str]:
    """Forget what no step can depend on; returns what is wrong with that. Itself is no matter."""
    known = {step.id for step in steps}
    faults = []
    for step in steps:
        lost = [name for name in step.depends_on if name not in known]
        faults += [f"step {step.id!r} depends on {name!r}, which is not there" for name in lost]
        step.depends_on = [name for name in step.depends_on if name in known - {step.id}]
    return faults


def _without_circles(steps: list[Step]) -> tuple[list[Step], list[str]]:
    """Every step behind those it depends on; where that cannot be, it no longer does."""
    placed: dict[str, Step] = {}
    faults = []
    rest = list(steps)
    while rest:
        ready = next((step for step in rest if placed.keys() >= set(step.depends_on)), None)
        if ready is None:
            ready = rest[0]
            behind = [name for name in ready.depends_on if name not in placed]
            ready.depends_on = [name for name in ready.depends_on if name in placed]
            named = ", ".join(map(repr, behind))
            faults.append(f"step {ready.id!r} and {named} depend on each other")
        rest.remove(ready)
        placed[ready.id] = ready
    return list(placed.values()), faults


def _listed(text: str) -> list[Step]:
    """The steps of a list in Markdown: numbered, else with bullets."""
    for item, least in ((_NUMBERED, 1), (_BULLET, 2)):
        steps: list[Step] = []
        for line in text.split("\n"):
            match = item.match(line)
            if match is not None:
                title, detail = _divided(match[1])
                steps.append(Step(str(len(steps) + 1), title, detail))
            elif steps and line.strip():
                steps[-1].detail = f"{steps[-1].detail} {_line(line)}".strip()[:DETAIL_CHARS]
        steps = [step for step in steps if step.title]
        if len(steps) >= least:
            return _renumbered(steps)
    return []


def _renumbered(steps: list[Step]) -> list[Step]:
    for number, step in enumerate(steps, 1):
        step.id = str(number)
    return steps


def _divided(line: str) -> tuple[str, str]:
    """`Title: detail`, as lists have it."""
    title, *detail = _TITLE_END.split(_line(line), maxsplit=1)
    return title.rstrip(": ")[:TITLE_CHARS], "".join(detail)[:DETAIL_CHARS]


def _line(value: Any) -> str:
    """A text in one line, without marks of emphasis."""
    return " ".join(value.replace("**", "").split()) if isinstance(value, str) else ""


def _name(value: Any) -> str:
    """An id or a number as text; empty for what is none."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return ""
    return " ".join(str(value).split())[:ID_CHARS]
