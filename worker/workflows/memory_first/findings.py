"""What index_extract leaves for later steps: terms, candidates, what each source is about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from worker.workflows.memory_first import entities
from worker.workflows.memory_first.candidates import Candidate, candidates
from worker.workflows.memory_first.terms import KEYPHRASE, Place, Term, Totals, Variant

#: Terms that are looked at for proposals, whatever the items show.
_LEAST_TERMS: Final = 500
#: Terms that a source is said to be about.
_ABOUT: Final = 5
_NAMING: Final = (KEYPHRASE, entities.NAME, entities.ACRONYM)


@dataclass
class Findings:
    """All of that."""

    terms: list[Term] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    #: By source: the names of the terms that it is about, the best first.
    about: dict[str, list[str]] = field(default_factory=dict)
    sources: int = 0

    def view(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "terms": [_term_view(term) for term in self.terms],
            "candidates": [candidate.view() for candidate in self.candidates],
            "about": self.about,
            "sources": self.sources,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Findings:
        """From JSON."""
        return cls(
            [_term(each) for each in stored["terms"]],
            [Candidate.of(each) for each in stored["candidates"]],
            dict(stored["about"]),
            int(stored["sources"]),
        )


def find(analyses: Sequence[tuple[str, str, Mapping[str, Any]]], most: int) -> Findings:
    """What is in all sources together: each with its id and language, in their order."""
    totals = Totals()
    for source, language, analysis in analyses:
        totals.add(source, language, analysis)
    terms = totals.terms(max(most, _LEAST_TERMS))
    found = candidates(totals, terms)
    about = {source: _about(analysis, terms, len(analyses)) for source, _, analysis in analyses}
    return Findings(terms, found, about, len(analyses))


def _about(analysis: Mapping[str, Any], terms: Sequence[Term], count: int) -> list[str]:
    """The terms that come up in a source more often than in others."""
    worth: dict[str, float] = {}
    for term in terms:
        if term.kind not in _NAMING:
            continue
        freq = sum(
            found[variant.name][0]
            for variant in term.variants
            for found in (analysis["words"], analysis["phrases"])
            if variant.name in found
        )
        if freq:
            rare = math.log(1 + count / term.df)
            worth[term.term] = term.score * (1 + math.log(freq)) * rare
    return sorted(worth, key=lambda name: (-worth[name], name))[:_ABOUT]


def _term_view(term: Term) -> list[Any]:
    return [
        term.term,
        term.kind,
        term.freq,
        term.df,
        term.score,
        [list(place) for place in term.evidence],
        [variant.view() for variant in term.variants],
        term.language,
    ]


def _term(stored: Sequence[Any]) -> Term:
    term, kind, freq, df, score, evidence, variants, language = stored
    return Term(
        term,
        kind,
        freq,
        df,
        score,
        [Place(*place) for place in evidence],
        [Variant(*each) for each in variants],
        language,
    )
