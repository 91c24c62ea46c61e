"""From what the sources say one by one to the terms of all of them, the best first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, Final, NamedTuple

from worker.features.rag.text.languages import COMMON_WORDS, ENGLISH, stem
from worker.features.workflows.memory_first.terms.similarity import differ_in_number, is_plural
from worker.features.workflows.memory_first.text import entities
from worker.features.workflows.memory_first.text.stopwords import general_words

KEYPHRASE: Final = "keyphrase"
#: Places that are told of a term, each in another source as far as that goes.
MOST_EVIDENCE: Final = 5
#: What an entity is worth beside a phrase that comes up as often.
_WEIGHTS: Final = {
    entities.ACRONYM: 1.2,
    entities.NAME: 1.1,
    entities.IDENTIFIER: 0.5,
    entities.CODE: 0.35,
    entities.EMAIL: 0.5,
    entities.URL: 0.3,
    entities.DATE: 0.3,
}
#: A word in headings counts for more, and one that is in several sources as well.
_HEADING_BOOST: Final = 0.25
_MOST_HEADINGS: Final = 4
_SHORTEST_WORD: Final = 3
#: A word that hardly ever stands without others next to it is a part of theirs.
_LEAST_ALONE: Final = 0.15
#: A plural this many times as frequent as its singular is what the term is called.
_RARELY: Final = 10


class Occurrence(NamedTuple):
    """Where something stands: a source's item, and a character of its text."""

    source: str
    offset: int

    def view(self) -> dict[str, Any]:
        return {"source": self.source, "offset": self.offset}


@dataclass
class TermStats:
    """Something that came up, in all sources together."""

    freq: int = 0
    df: int = 0
    heads: int = 0
    forms: dict[str, int] = field(default_factory=dict)
    #: Where each of the forms stands first.
    first: dict[str, Occurrence] = field(default_factory=dict)
    #: By source, a few each.
    occurrences: list[list[Occurrence]] = field(default_factory=list)
    #: How often in each language; words of two languages are not compared.
    languages: dict[str, int] = field(default_factory=dict)
    #: Of a word: how often it stood where verbs do, and where names of things do.
    verbs: int = 0
    nouns: int = 0
    #: And how often without others next to it.
    alone: int = 0

    def add(self, source: str, language: str, seen: Sequence[Any]) -> None:
        """What one source says of it."""
        freq, heads, offsets, forms, verbs, nouns, alone = seen
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
        """The one in which it came up most."""
        return min(self.languages, key=lambda name: (-self.languages[name], name))

    @property
    def form(self) -> str:
        """How it is written most, in the middle of sentences; empty where it never stands there."""
        return min(self.forms, key=lambda form: (-self.forms[form], form), default="")

    def evidence(self) -> list[Occurrence]:
        """A few places, from as many sources as possible."""
        return pick_evidence(self.occurrences)


@dataclass(frozen=True)
class Variant:
    """One way to write a term, in lower case, and how often it is written so."""

    name: str
    freq: int
    df: int

    def view(self) -> list[Any]:
        return [self.name, self.freq, self.df]


@dataclass
class Term:
    """A term: what index_extract leaves as an item."""

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
        """In lower case, as terms are compared."""
        return self.variants[0].name if self.variants else self.term.casefold()

    def payload(self) -> dict[str, Any]:
        return {
            "term": self.term,
            "kind": self.kind,
            "freq": self.freq,
            "df": self.df,
            "score": self.score,
            "evidence": [place.view() for place in self.evidence],
        }


class CorpusStats:
    """All sources together."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.words: dict[str, TermStats] = {}
        self.phrases: dict[str, TermStats] = {}
        self.entities: dict[tuple[str, str], TermStats] = {}
        #: Short form, longer form, whether each letter begins a word; where.
        self.pairs: dict[tuple[str, str, bool], list[Occurrence]] = {}

    def add(self, source: str, language: str, analysis: Mapping[str, Any]) -> None:
        """Take one source's analysis in; the order of the sources matters."""
        self.sources.append(source)
        for name, seen in analysis["words"].items():
            self.words.setdefault(name, TermStats()).add(source, language, seen)
        for name, seen in analysis["phrases"].items():
            self.phrases.setdefault(name, TermStats()).add(source, language, seen)
        for kind, found in analysis["entities"].items():
            for name, seen in found.items():
                self.entities.setdefault((kind, name), TermStats()).add(source, language, seen)
        for short, long, offset, exact in analysis["pairs"]:
            self.pairs.setdefault((short, long, exact), []).append(Occurrence(source, offset))

    @cached_property
    def inside(self) -> dict[str, int]:
        """How often each name stands in the commonest longer one; asked when all are added."""
        return _inside({**self.words, **self.phrases})

    def terms(self, most: int) -> list[Term]:
        """The best terms, the best first; a score is 0 to 1, 1 for the first."""
        found = [*self._keyphrases(), *self._entities()]
        best = max((term.score for term in found), default=0.0) or 1.0
        seen: dict[str, Term] = {}
        for term in sorted(found, key=lambda each: (-each.score, each.kind, each.term)):
            term.score = round(term.score / best, 4)
            seen.setdefault(term.term.casefold(), term)
        return list(seen.values())[:most]

    # -- words and phrases -------------------------------------------------------------------------

    def _keyphrases(self) -> Iterator[Term]:
        """Phrases by how often they stand for themselves, not as a part of longer ones."""
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
        told = [Variant(name, every[name].freq, every[name].df) for name in variants]
        return Term(
            form,
            kind,
            freq,
            df,
            score,
            first.evidence(),
            told,
            first.language,
        )

    def spelling(self, name: str) -> str:
        """How a name in lower case is written, in the middle of sentences, or word by word."""
        total = self.words.get(name) or self.phrases.get(name)
        form = total.form if total is not None else ""
        if form or " " not in name:
            return form or name
        return " ".join(self.spelling(word) for word in name.split(" "))

    def _verbs(self) -> frozenset[str]:
        """Stems of words that stand where verbs do more often than where names of things do."""
        told: dict[str, int] = {}
        for word, total in self.words.items():
            if total.verbs or total.nouns:
                key = _stems(word, total.language)
                told[key] = told.get(key, 0) + total.verbs - total.nouns
        return frozenset(key for key, more in told.items() if more > 0)

    def _may_be_term(self, name: str, total: TermStats) -> bool:
        if " " in name:
            words = name.split(" ")
            return len(set(words)) == len(words)
        if name[0] > "\u0e00":  # of letters that are not set apart
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
        """A term of several sources holds them together; one of all of them tells little apart."""
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
        """Whether an acronym is a word in capitals: `NOTE`, `NEVER`."""
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
    places: Sequence[Sequence[Occurrence]], most: int = MOST_EVIDENCE
) -> list[Occurrence]:
    """The first place of each source, then the second of each, until there are enough."""
    found: list[Occurrence] = []
    for round_number in range(max(map(len, places), default=0)):
        found += [each[round_number] for each in places if len(each) > round_number]
    return sorted(found[:most])


def _inside(every: Mapping[str, TermStats]) -> dict[str, int]:
    """For each phrase: how often the commonest longer phrase comes up that it is a part of."""
    most: dict[str, int] = {}
    for name, total in every.items():
        for part in _parts(name):
            if total.freq > most.get(part, 0) and part in every:
                most[part] = total.freq
    return most


def _parts(name: str) -> Iterator[str]:
    """Every shorter phrase inside a phrase."""
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
    """Words of a phrase; two letters where words are not set apart count as one."""
    return name.count(" ") + 1 if name[0] <= "\u0e00" else (len(name) + 1) // 2


def _stems(name: str, language: str) -> str:
    if language not in COMMON_WORDS:
        return name
    return " ".join(stem(word, language) for word in name.split(" "))


def _last_stem(name: str, language: str) -> str:
    return _stems(name.rpartition(" ")[2], language)


def _singular_first(variants: list[str], every: Mapping[str, TermStats]) -> list[str]:
    """A term is called by its singular, unless hardly anybody does."""
    for name in variants[1:]:
        if len(name) < len(variants[0]) and _RARELY * every[name].freq >= every[variants[0]].freq:
            return [name, *(each for each in variants if each != name)]
    return variants


def _stripped(name: str, plain: frozenset[str]) -> Iterator[str]:
    for ending in ("s", "es"):
        if name.endswith(ending) and name[: -len(ending)] in plain:
            yield name[: -len(ending)]


def _partition(names: Sequence[str], every: Mapping[str, TermStats]) -> list[list[str]]:
    """Names of one stem that are one term; stems are also shared by `universe` and `university`."""
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
    """Whether something is written with capitals even in the middle of sentences."""
    if language == "de" and " " not in form:  # so is every noun
        return False
    return form != name and all(word[:1].isupper() for word in form.split(" "))
