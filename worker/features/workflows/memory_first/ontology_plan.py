"""Plans how approved proposals change an ontology, and which of them cannot be applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.rag import MOST_ALIASES, NAME_CHARS
from sluice.common.contracts.workflow.statuses import (
    ItemStatus,
    ProposalField,
    ProposalKind,
    WorkflowError,
)
from sluice.common.features.rag.ontology import TermEntry, normalize_name, term_key
from sluice.common.features.workflows.effects import Effects, TermChange
from sluice.common.features.workflows.records import Item
from sluice.worker.features.workflows.errors import StepError

#: Kinds that add an alias to a term.
_ALIAS_KINDS: Final = (ProposalKind.TERM_ALIAS, ProposalKind.TERM_MERGE)
_ENDS: Final = (ProposalField.FROM, ProposalField.TO)


class ApplyFailure(NamedTuple):
    """A proposal that could not be applied, or a source that could not be stored."""

    name: str
    message: str


class FileMove(NamedTuple):
    """A file that should be moved; users do that themselves."""

    proposal: str
    path: str
    to: str


@dataclass(frozen=True)
class OntologyPlan:
    """Changes for a set of proposals."""

    proposals: Sequence[Item]
    changes: Sequence[TermChange]
    #: Terms that already are as proposed; claimed so that undoing another job does not remove them.
    claims: Sequence[TermChange]
    #: Proposals that cannot be applied.
    failures: Sequence[ApplyFailure]
    moves: Sequence[FileMove]
    #: Number of terms before and after.
    terms_before: int
    terms_after: int

    def changed(self) -> list[tuple[str, str, int]]:
        """New statuses of the proposals, each with the version that was read."""
        failed = {failure.name for failure in self.failures}
        return [
            (
                item.id,
                (ItemStatus.FAILED if item.id in failed else ItemStatus.APPLIED).value,
                item.version,
            )
            for item in self.proposals
        ]


def without_effects(stored: Mapping[str, bytes], effects: Effects) -> dict[str, bytes]:
    """The ontology as it was before an execution changed it; changes of others are kept."""
    base = dict(stored)
    for name, (before, after) in effects.terms.items():
        if base.get(name, b"") == after:
            base[name] = before
    return {name: raw for name, raw in base.items() if raw}


def plan_ontology(
    stored: Mapping[str, bytes], effects: Effects, proposals: Sequence[Item], job: str, now_ms: int
) -> OntologyPlan:
    """Plan the changes of proposals, given the effects of earlier attempts."""
    base = without_effects(stored, effects)
    planner = _OntologyPlanner(base, job, now_ms)
    for item in proposals:
        planner.apply(item)
    target = planner.result()
    changes = [
        TermChange(name, stored.get(name, b""), target.get(name, b""))
        for name in sorted({*target, *stored})
        if stored.get(name) != target.get(name)
    ]
    claims = [
        TermChange(name, target[name], target[name])
        for name in sorted(planner.known)
        if name in target and stored.get(name) == target[name]
    ]
    sizes = len(base), len(target)
    return OntologyPlan(proposals, changes, claims, planner.failures, planner.moves, *sizes)


class _OntologyPlanner:
    def __init__(self, base: Mapping[str, bytes], job: str, now_ms: int) -> None:
        self._base = base
        self._job, self._now_ms = job, now_ms
        read = {name: TermEntry.from_json(raw) for name, raw in base.items()}
        self._entries = {name: entry for name, entry in read.items() if entry is not None}
        self._changed: dict[str, TermEntry | None] = {}
        #: Fields that needed no change for some proposal.
        self.known: set[str] = set()
        self.failures: list[ApplyFailure] = []
        self.moves: list[FileMove] = []

    def result(self) -> dict[str, bytes]:
        """The resulting ontology."""
        target = dict(self._base)
        for name, entry in self._changed.items():
            target[name] = b"" if entry is None else entry.to_json()
        return {name: raw for name, raw in target.items() if raw}

    def apply(self, item: Item) -> None:
        try:
            self._apply(item)
        except StepError as error:
            self.failures.append(ApplyFailure(item.id, str(error)))

    def _apply(self, item: Item) -> None:
        payload = codec.parse_payload(item.payload)
        try:
            kind = ProposalKind(payload.get(ProposalField.KIND))
        except ValueError:
            raise _invalid_proposal("its kind is invalid; reject it") from None
        if kind is ProposalKind.FILE_MOVE:
            self.moves.append(FileMove(item.id, *(_path(payload, each) for each in _ENDS)))
            return
        term = _name(payload, ProposalField.TO)
        alias = _name(payload, ProposalField.FROM) if kind in _ALIAS_KINDS else ""
        entry = self._entries.get(term_key(term)) or TermEntry("")
        target = replace(entry, term=entry.term or term)
        if kind is ProposalKind.TERM_CASE:
            target = replace(target, term=term)
        if alias and term_key(alias) != term_key(term):
            target = replace(target, aliases=self._aliases(target, alias))
            self._put(term_key(alias), None)
        if target == entry:
            self.known.add(term_key(term))
        else:
            self._put(
                term_key(term),
                replace(
                    target, kind=kind.value, job=self._job, proposal=item.id, added_ms=self._now_ms
                ),
            )

    def _aliases(self, entry: TermEntry, alias: str) -> tuple[str, ...]:
        """The aliases of a term with one more; if that was a term itself, its aliases are added,
        too.
        """
        known = self._entries.get(term_key(alias))
        distinct: dict[str, str] = {}
        for name in (*entry.names, alias, *(known.aliases if known else ())):
            distinct.setdefault(term_key(name), name)
        if len(distinct) > MOST_ALIASES + 1:
            raise _invalid_proposal(
                f"the term already has {MOST_ALIASES} aliases, the maximum; reject it"
            )
        return tuple(distinct.values())[1:]

    def _put(self, name: str, entry: TermEntry | None) -> None:
        if entry is not None:
            self._entries[name] = self._changed[name] = entry
        elif self._entries.pop(name, None) is not None:
            self._changed[name] = None


def _name(payload: Mapping[str, Any], member: str) -> str:
    value = payload.get(member)
    name = normalize_name(value) if isinstance(value, str) else ""
    if not name or not term_key(name) or not isinstance(value, str):
        raise _invalid_proposal(f"its {member!r} is not a valid term; edit or reject it")
    if len(" ".join(value.split())) > NAME_CHARS:
        raise _invalid_proposal(f"its {member!r} has more than {NAME_CHARS} characters; edit it")
    return name


def _path(payload: Mapping[str, Any], member: str) -> str:
    value = payload.get(member)
    if not isinstance(value, str) or not value:
        raise _invalid_proposal(f"its {member!r} is not a path; edit or reject it")
    return value


def _invalid_proposal(message: str) -> StepError:
    return StepError(WorkflowError.INVALID.value, message)
