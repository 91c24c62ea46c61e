"""Plans for an ontology: single proposals and combinations."""

from __future__ import annotations

import json
from typing import Any

from common.contracts.rag import MOST_ALIASES
from common.contracts.workflow.statuses import ItemStatus
from common.features.rag.ontology import TermEntry
from common.features.workflows.effects import Effects, TermChange
from common.features.workflows.records import Item
from worker.features.workflows.memory_first.ontology_plan import (
    OntologyPlan,
    plan_ontology,
    without_effects,
)


def item(number: int, kind: str, source: str | None, to: Any) -> Item:
    payload = json.dumps({"kind": kind, "from": source, "to": to}).encode()
    name = f"p_{number:03d}"
    return Item(name, number, "proposals", "proposal", ItemStatus.APPROVED, payload, 2, False, 0.9)


def planned(stored: dict[str, bytes], *proposals: tuple[str, str | None, Any]) -> OntologyPlan:
    items = [item(number, *each) for number, each in enumerate(proposals, 1)]
    return plan_ontology(stored, Effects(), items, "wf_20260214_001", 17)


def names(found: OntologyPlan) -> dict[str, Any]:
    """Changed fields, with their resulting names."""
    read = {change.field: TermEntry.from_json(change.after or b"") for change in found.changes}
    return {field: entry and entry.names for field, entry in read.items()}


def stored(*entries: TermEntry) -> dict[str, bytes]:
    return {entry.term.casefold(): entry.to_json() for entry in entries}


def test_each_kind() -> None:
    assert names(planned({}, ("term_alias", "DLQ", "dead letter queue"))) == {
        "dead letter queue": ("dead letter queue", "DLQ")
    }
    assert names(planned({}, ("term_merge", "colour", "color"))) == {"color": ("color", "colour")}
    assert names(planned({}, ("term_case", "redis", "Redis"))) == {"redis": ("Redis",)}
    assert names(planned({}, ("term_add", None, " back  log "))) == {"back log": ("back log",)}


def test_known_terms_change_nothing() -> None:
    there = stored(TermEntry("Redis", ("rds",)))
    found = planned(
        there,
        ("term_add", None, "redis"),
        ("term_alias", "RDS", "redis"),
        ("term_case", "x", "Redis"),
    )
    assert found.changes == []
    assert [status for _, status, _ in found.changed()] == ["applied"] * 3


def test_case_changes_how_it_is_written() -> None:
    there = stored(TermEntry("redis", ("rds",)))
    assert names(planned(there, ("term_case", "redis", "Redis"))) == {"redis": ("Redis", "rds")}


def test_a_term_that_becomes_an_alias_keeps_its_aliases() -> None:
    there = stored(TermEntry("DLQ", ("morgue",)), TermEntry("dead letter queue", ("dlqueue",)))
    found = planned(there, ("term_alias", "DLQ", "dead letter queue"))
    assert names(found) == {
        "dlq": None,
        "dead letter queue": ("dead letter queue", "dlqueue", "DLQ", "morgue"),
    }
    assert [change.after for change in found.changes if change.field == "dlq"] == [b""]
    assert (found.terms_before, found.terms_after) == (2, 1)


def test_proposals_that_contradict_each_other_end_well() -> None:
    found = planned({}, ("term_alias", "a", "b"), ("term_alias", "b", "a"))
    assert names(found) == {"a": ("a", "b")}


def test_a_name_is_not_its_own_alias() -> None:
    found = planned({}, ("term_merge", "REDIS", "redis"), ("term_merge", "Redis", "redis"))
    assert names(found) == {"redis": ("redis",)}


def test_the_number_of_aliases_is_limited() -> None:
    full = stored(TermEntry("x", tuple(f"x{number}" for number in range(MOST_ALIASES))))
    found = planned(full, ("term_alias", "one more", "x"), ("term_alias", "x3", "x"))
    assert found.changes == []
    assert [failure.name for failure in found.failures] == ["p_001"]


def test_an_invalid_entry_is_replaced() -> None:
    assert names(planned({"x": b"{"}, ("term_add", None, "X"))) == {"x": ("X",)}


def test_an_earlier_attempt_is_continued() -> None:
    first = planned({}, ("term_add", None, "a"), ("term_add", None, "b"))
    half = first.changes[0]
    made = Effects({half.field: (half.before, half.after)})
    items = [item(number, "term_add", None, name) for number, name in enumerate("ab", 1)]
    again = plan_ontology({half.field: half.after}, made, items, "wf_20260214_001", 17)
    assert again.changes == [first.changes[1]]
    assert (again.terms_before, again.terms_after) == (0, 2)


def test_changes_no_longer_approved_are_reverted() -> None:
    made = Effects({"a": (b"old", b"new")})
    found = plan_ontology({"a": b"new"}, made, [], "wf_20260214_001", 17)
    assert found.changes == [TermChange("a", b"new", b"old")]
    assert without_effects({"a": b"another's"}, made) == {"a": b"another's"}


def test_odd_names_are_refused() -> None:
    for to in (None, 7, "", " \n ", "x" * 201, ["x"], {"a": 1}):
        assert planned({}, ("term_add", None, to)).failures
    assert not planned({}, ("term_add", None, "x" * 200)).failures
