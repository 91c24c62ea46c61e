"""From what was found to proposals: the surest first, none twice, none against another."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from common.contracts.workflow import ProposalField, ProposalKind
from common.rag_ontology import TermEntry, field_of, tidy
from worker.workflows.memory_first import entities
from worker.workflows.memory_first.candidates import Candidate
from worker.workflows.memory_first.findings import Findings
from worker.workflows.memory_first.terms import KEYPHRASE, Place, Term

#: Kinds of terms that are worth remembering by their name.
_ADDED: Final = frozenset((KEYPHRASE, entities.NAME, entities.ACRONYM))
#: Most terms that are proposed as such: the others of a job are what they are about.
_MOST_ADDED: Final = 200
#: Confidence of a term that scores nothing, and how much the best one has more.
_LEAST_SURE, _MORE_SURE = 0.35, 0.55
#: Words by themselves say less than phrases, names and short forms.
_SINGLE_WORD: Final = 0.9
_DIGITS: Final = 4


@dataclass(frozen=True)
class Proposal:
    """What one item of the step proposes."""

    kind: ProposalKind
    source: str | None
    target: str
    confidence: float
    rationale: str
    evidence: tuple[Place, ...]

    @property
    def order(self) -> tuple[float, str, str, str]:
        """The surest first, then by name."""
        name = self.source if self.source is not None else self.target
        return (-self.confidence, name.casefold(), name, self.kind.value)

    def payload(self) -> dict[str, Any]:
        """As its item shows it."""
        return {
            ProposalField.KIND.value: self.kind.value,
            ProposalField.FROM.value: self.source,
            ProposalField.TO.value: self.target,
            ProposalField.CONFIDENCE.value: self.confidence,
            ProposalField.RATIONALE.value: self.rationale,
            ProposalField.EVIDENCE.value: [place.view() for place in self.evidence],
        }


class Known:
    """What the namespace knows already."""

    def __init__(self, entries: Iterable[TermEntry] = ()) -> None:
        self._terms: dict[str, str] = {}
        for entry in entries:
            for name in entry.names:
                self._terms.setdefault(field_of(name), field_of(entry.term))
        #: How names are written there.
        self._written = frozenset(name for entry in entries for name in entry.names)

    def holds(self, name: str) -> bool:
        """Whether it is a term, or another name of one."""
        return field_of(name) in self._terms

    def is_one(self, one: str, other: str) -> bool:
        """Whether two names are known to be one."""
        term = self._terms.get(field_of(one))
        return term is not None and term == self._terms.get(field_of(other))

    def are_two(self, one: str, other: str) -> bool:
        """Whether both are known, and known to be two."""
        return self.holds(one) and self.holds(other) and not self.is_one(one, other)

    def is_written(self, name: str) -> bool:
        """Whether a name is written exactly so."""
        return name in self._written


def propose(
    findings: Findings,
    known: Known,
    limit: int,
    min_confidence: float,
    moves: Sequence[Proposal] = (),
) -> list[Proposal]:
    """The best proposals, in order."""
    renamed = _Renamed()
    wanted = [each for each in findings.candidates if _is_news(each, known)]
    for candidate in sorted(wanted, key=_surest):
        if candidate.confidence >= min_confidence and _fits(candidate):
            renamed.add(candidate)
    found = [
        *renamed.proposals(),
        *_cases(wanted, renamed),
        *_added(findings, known, renamed.taken, min_confidence),
        *moves,
    ]
    kept = [each for each in found if each.confidence >= min_confidence]
    return sorted(kept, key=lambda each: each.order)[:limit]


class _Renamed:
    """Names that become others: each at most one, never in a circle, always the last in a row."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}
        self._kept: list[Candidate] = []
        self._written: dict[str, str] = {}

    def add(self, candidate: Candidate) -> None:
        """Take it, unless what was taken before speaks against it."""
        if candidate.kind is ProposalKind.TERM_CASE:
            return
        source, target = field_of(candidate.source), field_of(candidate.target)
        if source == target or source in self._above or self._root(target) == source:
            return
        self._above[source] = target
        self._written.setdefault(target, candidate.target)
        self._kept.append(candidate)

    @property
    def taken(self) -> frozenset[str]:
        """Names that go, and names that are what a short form means: nobody needs to add them."""
        meant = (each for each in self._kept if each.kind is ProposalKind.TERM_ALIAS)
        return frozenset(self._above) | {self._root(field_of(each.target)) for each in meant}

    def goes(self, name: str) -> bool:
        """Whether a name becomes another."""
        return field_of(name) in self._above

    def proposals(self) -> list[Proposal]:
        """What was taken, each with the last name in its row."""
        found = []
        for each in self._kept:
            root = self._root(field_of(each.target))
            target = each.target if root == field_of(each.target) else self._written[root]
            found.append(
                Proposal(
                    each.kind, each.source, target, each.confidence, each.rationale, each.evidence
                )
            )
        return found

    def _root(self, name: str) -> str:
        while name in self._above:
            name = self._above[name]
        return name


def _surest(candidate: Candidate) -> tuple[float, str, str, str]:
    name = candidate.source
    return (-candidate.confidence, name.casefold(), name, candidate.target)


def _is_news(candidate: Candidate, known: Known) -> bool:
    if candidate.kind is ProposalKind.TERM_CASE:
        return not known.is_written(candidate.source)
    one, other = candidate.source, candidate.target
    return not (known.is_one(one, other) or known.are_two(one, other))


def _fits(candidate: Candidate) -> bool:
    """Whether both names are kept whole."""
    return all(tidy(name) == name and name for name in (candidate.source, candidate.target))


def _cases(wanted: Iterable[Candidate], renamed: _Renamed) -> list[Proposal]:
    return [
        Proposal(
            each.kind, each.source, each.target, each.confidence, each.rationale, each.evidence
        )
        for each in wanted
        if each.kind is ProposalKind.TERM_CASE and _fits(each) and not renamed.goes(each.target)
    ]


def _added(
    findings: Findings, known: Known, taken: Collection[str], min_confidence: float
) -> list[Proposal]:
    """Terms that nobody has named yet."""
    found: list[Proposal] = []
    for term in findings.terms:
        name = field_of(term.term)
        if term.kind not in _ADDED or name in taken or known.holds(term.term):
            continue
        confidence = _confidence(term)
        if confidence < min_confidence or tidy(term.term) != term.term:
            continue
        times = "once" if term.freq == 1 else f"{term.freq} times"
        of = "the source" if findings.sources == 1 else f"{term.df} of {findings.sources} sources"
        words = f"comes up {times}, in {of}"
        found.append(
            Proposal(
                ProposalKind.TERM_ADD, None, term.term, confidence, words, tuple(term.evidence)
            )
        )
    return found[:_MOST_ADDED]


def _confidence(term: Term) -> float:
    sure = _LEAST_SURE + _MORE_SURE * math.sqrt(term.score)
    single = term.kind == KEYPHRASE and " " not in term.term and term.term.isascii()
    return round(sure * (_SINGLE_WORD if single else 1.0), _DIGITS)
