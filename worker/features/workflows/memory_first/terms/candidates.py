"""Candidates for proposals about names: acronyms, spellings, plurals and cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice.common.contracts.workflow.statuses import ProposalKind
from sluice.worker.features.workflows.memory_first.terms.similarity import (
    MIN_WORD_CHARS,
    SINGULAR_PLURAL,
    Similarity,
    compare_names,
    is_plural,
    without_separators,
)
from sluice.worker.features.workflows.memory_first.terms.terms import (
    KEYPHRASE,
    CorpusStats,
    Occurrence,
    Term,
    TermStats,
    pick_evidence,
)
from sluice.worker.features.workflows.memory_first.text import entities
from sluice.worker.features.workflows.memory_first.text.analysis import fold_word

#: Confidence in the expansion of an acronym: every letter begins a word; or not; or contradicted.
_EXACT, _LOOSE, _DISPUTED = 0.95, 0.85, 0.6
#: Added for each further occurrence, up to three.
_AGAIN: Final = 0.01
#: Minimum frequency of terms whose plural is proposed, and the confidence by the term's score. It
#: is low because searches match plurals anyway.
_OFTEN, _OFTEN_WORD = 3, 6
_MOST_PLURALS: Final = 40
_PLURAL_LEAST, _PLURAL_MORE = 0.65, 0.2
#: Minimum fraction of occurrences in the usual case, and minimum number of occurrences.
_CLEARLY: Final = 0.75
_MIN_OCCURRENCES: Final = 4
#: Limits of the names compared, to bound the time.
_MOST_NAMES: Final = 30_000
_MOST_IN_BUCKET: Final = 40


@dataclass(frozen=True)
class Candidate:
    """A possible change of `source` to `target`, with the reason."""

    kind: ProposalKind
    source: str
    target: str
    confidence: float
    rationale: str
    evidence: tuple[Occurrence, ...]

    def view(self) -> list[Any]:
        return [
            self.kind.value,
            self.source,
            self.target,
            self.confidence,
            self.rationale,
            [list(occurrence) for occurrence in self.evidence],
        ]

    @classmethod
    def of(cls, stored: Sequence[Any]) -> Candidate:
        kind, source, target, confidence, rationale, evidence = stored
        occurrences = tuple(Occurrence(*each) for each in evidence)
        return cls(ProposalKind(kind), source, target, confidence, rationale, occurrences)


def find_candidates(totals: CorpusStats, terms: Sequence[Term]) -> list[Candidate]:
    """All candidates, in no particular order."""
    return [
        *_alias_candidates(totals),
        *_plural_candidates(totals, terms),
        *_spelling_candidates(totals),
        *_case_candidates(totals),
    ]


# -- acronyms --------------------------------------------------------------------------------------


def _alias_candidates(totals: CorpusStats) -> Iterator[Candidate]:
    """The expansion of each acronym that most occurrences support."""
    meanings: dict[str, dict[str, list[tuple[str, str, bool, list[Occurrence]]]]] = {}
    for (short, long, exact), occurrences in totals.pairs.items():
        plain = short[:-1] if short.endswith("s") and short[:-1].isupper() else short
        key = " ".join(_singular(fold_word(word)) for word in long.split())
        expansions = meanings.setdefault(plain, {}).setdefault(without_separators(key), [])
        expansions.append((plain, long, exact, occurrences))
    for short, by_long in meanings.items():
        ranked = sorted(by_long.items(), key=lambda item: (-_count(item[1]), item[0]))
        best = ranked[0][1]
        disputed = len(ranked) > 1 and 2 * _count(ranked[1][1]) >= _count(best)
        exact = any(each[2] for each in best)
        sure = _DISPUTED if disputed else _EXACT if exact else _LOOSE
        count = _count(best)
        long = _long_form(totals, [each[1] for each in best for _ in each[3]])
        where = "one place" if count == 1 else f"{count} places"
        rationale = f"“{short}” stands for “{long}” in {where}"
        if disputed:
            rationale += ", and for something else elsewhere"
        evidence = pick_evidence([[each] for expansion in best for each in expansion[3]])
        confidence = round(min(0.98, sure + _AGAIN * min(3, count - 1)), 4)
        yield Candidate(
            ProposalKind.TERM_ALIAS, short, long, confidence, rationale, tuple(evidence)
        )


def _count(expansions: Iterable[tuple[str, str, bool, list[Occurrence]]]) -> int:
    return sum(len(each[3]) for each in expansions)


def _singular(word: str) -> str:
    return word[:-1] if is_plural(word[:-1], word) else word


def _long_form(totals: CorpusStats, written: Sequence[str]) -> str:
    """The expansion in the singular if it occurs, in the case used within sentences."""
    counts: dict[str, int] = {}
    for each in written:
        counts[each] = counts.get(each, 0) + 1
    best = min(counts, key=lambda each: (-counts[each], len(each), each))
    total = totals.phrases.get(" ".join(fold_word(word) for word in best.split()))
    usual = total.form if total is not None else ""
    lower = sum(count for form, count in total.forms.items() if form.islower()) if total else 0
    return best.lower() if lower and usual.casefold() == best.casefold() else best


# -- spellings -------------------------------------------------------------------------------------


def _plural_candidates(totals: CorpusStats, terms: Sequence[Term]) -> Iterator[Candidate]:
    """Singular and plural of the most important terms."""
    several = [
        term
        for term in terms
        if term.kind in (KEYPHRASE, entities.NAME)
        and len(term.variants) > 1
        and term.freq >= (_OFTEN if " " in term.name else _OFTEN_WORD)
    ]
    for term in several[:_MOST_PLURALS]:
        sure = _PLURAL_LEAST + _PLURAL_MORE * term.score
        for variant in term.variants[1:]:
            yield _merge_candidate(
                totals, variant.name, term.name, Similarity(SINGULAR_PLURAL, sure)
            )


def _spelling_candidates(totals: CorpusStats) -> Iterator[Candidate]:
    """Names with two spellings."""
    every = {**totals.words, **totals.phrases}
    names = sorted(every, key=lambda name: (-every[name].freq, name))[:_MOST_NAMES]
    seen: dict[tuple[str, str], None] = {}
    inside = totals.inside
    for bucket in _buckets(names):
        for at, one in enumerate(bucket):
            for other in bucket[at + 1 :]:
                first, second = _order_names(one, other, every)
                if (first, second) in seen:
                    continue
                seen[first, second] = None
                found = _spelling_similarity(every[first], every[second], first, second)
                # A name that occurs only within a longer one is handled with that.
                if found is not None and inside.get(second, 0) < every[second].freq:
                    yield _merge_candidate(totals, second, first, found)


def _order_names(one: str, other: str, every: Mapping[str, TermStats]) -> tuple[str, str]:
    """Order two names by which to keep: the more frequent one; without a hyphen if similarly
    frequent.
    """
    first, second = sorted(
        (one, other), key=lambda name: (-_freq(name, every), name.count(" "), name)
    )
    apart = first.replace("-", " ") == second and 2 * every[second].freq >= every[first].freq
    return (second, first) if apart else (first, second)


def _freq(name: str, every: Mapping[str, TermStats]) -> int:
    plural = every.get(f"{name}s")
    return every[name].freq + (plural.freq if plural is not None else 0)


def _spelling_similarity(
    usual: TermStats, rare: TermStats, first: str, second: str
) -> Similarity | None:
    if usual.language != rare.language or usual.freq < 2:
        return None
    if is_plural(first, second, usual.language):  # `_plural_candidates` chooses the important ones
        return None
    found = compare_names(first, second, usual.language, (usual.freq, rare.freq))
    return None if found is None or found.why == SINGULAR_PLURAL else found


def _buckets(names: Sequence[str]) -> Iterator[list[str]]:
    """Groups of similar names: equal without separators, up to one letter, or up to one word."""
    buckets: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for key in dict.fromkeys(_keys(name)):
            buckets.setdefault(key, []).append(name)
    for bucket in buckets.values():
        if len(bucket) > 1:
            yield bucket[:_MOST_IN_BUCKET]


def _keys(name: str) -> Iterator[tuple[str, str]]:
    yield "whole", without_separators(name)
    words = name.split(" ")
    if len(words) > 1:
        for at, word in enumerate(words):
            yield "word", " ".join((*words[:at], f"{word[:3]}*", *words[at + 1 :]))
    elif len(name) >= MIN_WORD_CHARS:
        yield "letter", name
        for at in range(1, len(name)):
            yield "letter", name[:at] + name[at + 1 :]


def _merge_candidate(totals: CorpusStats, source: str, target: str, found: Similarity) -> Candidate:
    rare, usual = _term_stats(totals, source), _term_stats(totals, target)
    rationale = (
        f"{found.why}: “{target}” is written {_times(usual.freq)}, “{source}” {_times(rare.freq)}"
    )
    evidence = (*pick_evidence(rare.occurrences, 3), *pick_evidence(usual.occurrences, 2))
    return Candidate(
        ProposalKind.TERM_MERGE,
        totals.spelling(source),
        totals.spelling(target),
        round(found.confidence, 4),
        rationale,
        evidence,
    )


def _term_stats(totals: CorpusStats, name: str) -> TermStats:
    return totals.words.get(name) or totals.phrases[name]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# -- cases -----------------------------------------------------------------------------------------


def _case_candidates(totals: CorpusStats) -> Iterator[Candidate]:
    """Words mostly written in one case, and sometimes in another."""
    for name, total in totals.words.items():
        every = sum(total.forms.values())
        usual = total.form
        if len(total.forms) < 2 or every < _MIN_OCCURRENCES or len(name) < 3:
            continue
        if total.forms[usual] < _CLEARLY * every:
            continue
        for form in sorted(total.forms):
            sure = _case_confidence(usual, form, total.language)
            if sure and form.casefold() == usual.casefold():
                share = total.forms[usual] / every
                rationale = (
                    f"in the middle of sentences it is written “{usual}” "
                    f"{_times(total.forms[usual])}, “{form}” {_times(total.forms[form])}"
                )
                yield Candidate(
                    ProposalKind.TERM_CASE,
                    form,
                    usual,
                    round(sure * (0.5 + 0.5 * share), 4),
                    rationale,
                    (total.first[form], total.first[usual]),
                )


def _case_confidence(usual: str, form: str, language: str) -> float:
    """Confidence that `form` is just `usual` in another case."""
    if form == usual or form.isupper():  # emphasis
        return 0.0
    if usual.islower():
        # Words are capitalised for many reasons, but a spelling such as `systemD` is deliberate.
        return 0.0 if form.istitle() or form[:1].isupper() else 0.8
    if usual.istitle():
        return 0.0 if language == "de" else 0.9
    return 0.95
