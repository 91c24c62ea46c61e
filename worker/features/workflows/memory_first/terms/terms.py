"""Combines the analyses of all sources into ranked terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, Final, NamedTuple

from sluice.worker.features.rag.text.languages import COMMON_WORDS, ENGLISH, stem
from sluice.worker.features.workflows.memory_first.terms.similarity import (
    differ_in_number,
    is_plural,
)
from sluice.worker.features.workflows.memory_first.text import entities
from sluice.worker.features.workflows.memory_first.text.stopwords import general_words

KEYPHRASE: Final = "keyphrase"
#: Most occurrences listed for a term, from different sources if possible.
MOST_EVIDENCE: Final = 5
#: Weight of an entity relative to a phrase of the same frequency.
_WEIGHTS: Final = {
    entities.ACRONYM: 1.2,
    entities.NAME: 1.1,
    entities.IDENTIFIER: 0.5,
    entities.CODE: 0.35,
    entities.EMAIL: 0.5,
    entities.URL: 0.3,
    entities.DATE: 0.3,
}
#: Boost per occurrence in a heading, up to this many.
_HEADING_BOOST: Final = 0.25
_MOST_HEADINGS: Final = 4
_SHORTEST_WORD: Final = 3
#: A word that occurs without neighbours less often than this fraction is part of a phrase.
_LEAST_ALONE: Final = 0.15
#: The singular names the term unless the plural is this many times as frequent.
_RARELY: Final = 10


class Occurrence(NamedTuple):
    """A position in a source: id of its item, and character offset."""

    source: str
    offset: int

    def view(self) -> dict[str, Any]:
        return {"source": self.source, "offset": self.offset}


@dataclass
class TermStats:
    """Counts of a word, phrase or entity over all sources."""

    freq: int = 0
    df: int = 0
    heads: int = 0
    forms: dict[str, int] = field(default_factory=dict)
    #: First occurrence of each form.
    first: dict[str, Occurrence] = field(default_factory=dict)
    #: A few occurrences per source.
    occurrences: list[list[Occurrence]] = field(default_factory=list)
    #: Frequency per language; words of different languages are not compared.
    languages: dict[str, int] = field(default_factory=dict)
    #: For words: occurrences in the position of a verb, and of a noun.
    verbs: int = 0
    nouns: int = 0
    #: Occurrences without neighbouring words.
    alone: int = 0

    def add(self, source: str, language: str, counts: Sequence[Any]) -> None:
        """Add the counts of one source."""
        freq, heads, offsets, forms, verbs, nouns, alone = counts
        self.verbs += verbs
        self.nouns += nouns
        self.alone += alone
        self.freq += freq
        self.df += 1
        self.heads += heads
        self.languages[language] = self.languages.get(language, 0) + freq
        for form, (count, offset) in forms.items():
            self.forms[form] = self.forms.get(form, 0) + count
            self.first.setdefault(form, Occurrence(source, offset))
        if len(self.occurrences) < MOST_EVIDENCE:
            self.occurrences.append([Occurrence(source, offset) for offset in offsets])

    @property
    def language(self) -> str:
        """The most frequent language."""
        return min(self.languages, key=lambda name: (-self.languages[name], name))

    @property
    def form(self) -> str:
        """The most frequent form within sentences; empty if it never occurs there."""
        return min(self.forms, key=lambda form: (-self.forms[form], form), default="")

    def evidence(self) -> list[Occurrence]:
        """A few occurrences, from as many sources as possible."""
        return pick_evidence(self.occurrences)


@dataclass(frozen=True)
class Variant:
    """A form of a term in lower case, with its frequency."""

    name: str
    freq: int
    df: int

    def view(self) -> list[Any]:
        return [self.name, self.freq, self.df]


@dataclass
class Term:
    """A term: an item of index_extract."""

    term: str
    kind: str
    freq: int
    df: int
    score: float
    evidence: list[Occurrence]
    variants: list[Variant] = field(default_factory=list)
    language: str = ENGLISH

    @property
    def name(self) -> str:
        """Lower-case form, as used for comparison."""
        return self.variants[0].name if self.variants else self.term.casefold()

    def payload(self) -> dict[str, Any]:
        return {
            "term": self.term,
            "kind": self.kind,
            "freq": self.freq,
            "df": self.df,
            "score": self.score,
            "evidence": [occurrence.view() for occurrence in self.evidence],
        }


class CorpusStats:
    """Statistics of all sources together."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.words: dict[str, TermStats] = {}
        self.phrases: dict[str, TermStats] = {}
        self.entities: dict[tuple[str, str], TermStats] = {}
        #: Occurrences of (acronym, expansion, whether each letter begins a word).
        self.pairs: dict[tuple[str, str, bool], list[Occurrence]] = {}

    def add(self, source: str, language: str, analysis: Mapping[str, Any]) -> None:
        """Add the analysis of a source; the order of the sources matters."""
        self.sources.append(source)
        for name, counts in analysis["words"].items():
            self.words.setdefault(name, TermStats()).add(source, language, counts)
        for name, counts in analysis["phrases"].items():
            self.phrases.setdefault(name, TermStats()).add(source, language, counts)
        for kind, found in analysis["entities"].items():
            for name, counts in found.items():
                self.entities.setdefault((kind, name), TermStats()).add(source, language, counts)
        for short, long, offset, exact in analysis["pairs"]:
            self.pairs.setdefault((short, long, exact), []).append(Occurrence(source, offset))

    @cached_property
    def inside(self) -> dict[str, int]:
        """Frequency of the most frequent longer name around each name.

        Valid after all sources are added.
        """
        return _inside({**self.words, **self.phrases})

    def terms(self, most: int) -> list[Term]:
        """The best terms, best first; scores are relative to the best one, from 0 to 1."""
        found = [*self._keyphrases(), *self._entities()]
        best = max((term.score for term in found), default=0.0) or 1.0
        distinct: dict[str, Term] = {}
        for term in sorted(found, key=lambda each: (-each.score, each.kind, each.term)):
            term.score = round(term.score / best, 4)
            distinct.setdefault(term.term.casefold(), term)
        return list(distinct.values())[:most]

    # -- words and phrases -------------------------------------------------------------------------

    def _keyphrases(self) -> Iterator[Term]:
        """Phrases, scored by how often they occur outside of longer ones."""
        every: dict[str, TermStats] = {**self.words, **self.phrases}
        inside = self.inside
        verbs = self._verbs()
        groups: dict[str, list[str]] = {}
        for name, total in every.items():
            if self._may_be_term(name, total) and _last_stem(name, total.language) not in verbs:
                groups.setdefault(_stems(name, total.language), []).append(name)
        for names in groups.values():
            names.sort(key=lambda name: (-every[name].freq, name))
            for variants in map(_singular_first, _partition(names, every), repeat(every)):
                term = self._keyphrase(variants, every, inside)
                if term is not None:
                    yield term

    def _keyphrase(
        self, variants: Sequence[str], every: Mapping[str, TermStats], inside: Mapping[str, int]
    ) -> Term | None:
        own = sum(max(0, every[name].freq - inside.get(name, 0)) for name in variants)
        first = every[variants[0]]
        length = _length(variants[0])
        freq = sum(every[name].freq for name in variants)
        if own < 1 or (freq < 2 and not first.heads):
            return None
        df = max(every[name].df for name in variants)
        heads = min(_MOST_HEADINGS, sum(every[name].heads for name in variants))
        worth = math.log2(1 + length) * (1 + math.log(own)) * (0.5 if length == 1 else 1.0)
        score = worth * self._spread(df) * (1 + _HEADING_BOOST * heads)
        form = self.spelling(variants[0])
        kind = entities.NAME if _is_name(form, variants[0], first.language) else KEYPHRASE
        counted = [Variant(name, every[name].freq, every[name].df) for name in variants]
        return Term(
            form,
            kind,
            freq,
            df,
            score,
            first.evidence(),
            counted,
            first.language,
        )

    def spelling(self, name: str) -> str:
        """How a lower-case name is written within sentences, as a whole or word by word."""
        total = self.words.get(name) or self.phrases.get(name)
        form = total.form if total is not None else ""
        if form or " " not in name:
            return form or name
        return " ".join(self.spelling(word) for word in name.split(" "))

    def _verbs(self) -> frozenset[str]:
        """Stems of words that occur more often as verbs than as nouns."""
        balance: dict[str, int] = {}
        for word, total in self.words.items():
            if total.verbs or total.nouns:
                key = _stems(word, total.language)
                balance[key] = balance.get(key, 0) + total.verbs - total.nouns
        return frozenset(key for key, more in balance.items() if more > 0)

    def _may_be_term(self, name: str, total: TermStats) -> bool:
        if " " in name:
            words = name.split(" ")
            return len(set(words)) == len(words)
        if name[0] > "\u0e00":  # scripts without spaces between words
            return len(name) > 1
        if len(name) < _SHORTEST_WORD or not any(sign.isalpha() for sign in name):
            return False
        if total.alone < _LEAST_ALONE * total.freq:
            return False
        plain = general_words(total.language)
        return name not in plain and not any(
            is_plural(name, each) for each in _stripped(name, plain)
        )

    def _spread(self, df: int) -> float:
        """Weight by document frequency: favours terms of several sources, but not of all."""
        count = len(self.sources)
        if count < 3:
            return 1.0
        return (1 + 0.5 * math.log(df)) * (1 + 0.5 * math.log(count / df))

    # -- entities ----------------------------------------------------------------------------------

    def _entities(self) -> Iterator[Term]:
        explained = {name for pair in self.pairs for name in pair[:2]}
        for (kind, name), total in self.entities.items():
            if kind == entities.ACRONYM and self._is_shouted(name, total):
                continue
            if (
                kind in (entities.NAME, entities.ACRONYM)
                and total.freq < 2
                and name not in explained
            ):
                continue
            score = _WEIGHTS[kind] * (1 + math.log(total.freq)) * self._spread(total.df)
            yield Term(name, kind, total.freq, total.df, score, total.evidence())

    def _is_shouted(self, name: str, total: TermStats) -> bool:
        """True if an acronym is just a word in capitals: `NOTE`, `NEVER`."""
        word = self.words.get(name.casefold())
        small = (
            0
            if word is None
            else sum(count for form, count in word.forms.items() if form.islower())
        )
        return small * 2 >= total.freq or any(
            name.casefold() in common for common in COMMON_WORDS.values()
        )


def pick_evidence(
    occurrences: Sequence[Sequence[Occurrence]], most: int = MOST_EVIDENCE
) -> list[Occurrence]:
    """The first occurrence of each source, then the second of each, until there are enough."""
    found: list[Occurrence] = []
    for round_number in range(max(map(len, occurrences), default=0)):
        found += [each[round_number] for each in occurrences if len(each) > round_number]
    return sorted(found[:most])


def _inside(every: Mapping[str, TermStats]) -> dict[str, int]:
    """For each phrase: the frequency of the most frequent longer phrase that contains it."""
    most: dict[str, int] = {}
    for name, total in every.items():
        for part in _parts(name):
            if total.freq > most.get(part, 0) and part in every:
                most[part] = total.freq
    return most


def _parts(name: str) -> Iterator[str]:
    """Every shorter phrase within a phrase."""
    if " " not in name:
        if name[0] <= "\u0e00":
            return
        for start in range(len(name)):
            for end in range(start + 2, len(name) + 1):
                if end - start < len(name):
                    yield name[start:end]
        return
    words = name.split(" ")
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            if end - start < len(words):
                yield " ".join(words[start:end])


def _length(name: str) -> int:
    """Words of a phrase; in scripts without spaces, two characters count as one."""
    return name.count(" ") + 1 if name[0] <= "\u0e00" else (len(name) + 1) // 2


def _stems(name: str, language: str) -> str:
    if language not in COMMON_WORDS:
        return name
    return " ".join(stem(word, language) for word in name.split(" "))


def _last_stem(name: str, language: str) -> str:
    return _stems(name.rpartition(" ")[2], language)


def _singular_first(variants: list[str], every: Mapping[str, TermStats]) -> list[str]:
    """Put the singular first, unless it is very rare."""
    for name in variants[1:]:
        if len(name) < len(variants[0]) and _RARELY * every[name].freq >= every[variants[0]].freq:
            return [name, *(each for each in variants if each != name)]
    return variants


def _stripped(name: str, plain: frozenset[str]) -> Iterator[str]:
    for ending in ("s", "es"):
        if name.endswith(ending) and name[: -len(ending)] in plain:
            yield name[: -len(ending)]


def _partition(names: Sequence[str], every: Mapping[str, TermStats]) -> list[list[str]]:
    """Group names of one stem into terms; stems are also shared by `universe` and `university`."""
    found: list[list[str]] = []
    for name in names:
        language = every[name].language
        for variants in found:
            if differ_in_number(variants[0], name, language):
                variants.append(name)
                break
        else:
            found.append([name])
    return found


def _is_name(form: str, name: str, language: str) -> bool:
    """True if it is capitalised within sentences."""
    if language == "de" and " " not in form:  # all German nouns are
        return False
    return form != name and all(word[:1].isupper() for word in form.split(" "))
