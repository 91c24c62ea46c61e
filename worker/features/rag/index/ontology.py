"""The terms that a namespace knows by several names: which of them a query holds, and what for."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from common.features.rag.ontology import TermEntry
from worker.features.rag.index.bm25 import Name
from worker.features.rag.text.terms import Token, query_terms, tokenize

#: Names in a query that are looked up, and others of each that count.
MOST_MATCHES: Final = 16
MOST_NAMES: Final = 16
#: Words of the longest name that is found.
MOST_NAME_WORDS: Final = 12
#: Others of a name that a vector is made with.
_NAMES_IN_TEXT: Final = 3
#: Bytes of an entry in memory, and of each of its names, about.
_ENTRY_BYTES: Final = 300
_NAME_BYTES: Final = 400


class SynonymMatch(NamedTuple):
    """A part of a query that has other names: `text[start:end]` of the query in NFC."""

    text: str
    start: int
    end: int
    names: tuple[str, ...]


class Ontology:
    """The terms of a namespace. Finding is for one thread at a time."""

    def __init__(self, entries: Iterable[TermEntry] = (), version: bytes = b"") -> None:
        self.entries = tuple(entries)
        #: As Redis has it; empty where there is none.
        self.version = version
        #: Only those that have other names can rename anything.
        self._aliased_names = [entry.names for entry in self.entries if entry.aliases]
        self._forms: dict[str, dict[tuple[str, ...], list[int]]] = {}

    def __bool__(self) -> bool:
        """Whether a query can be changed by it."""
        return bool(self._aliased_names)

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        names = sum(len(entry.names) for entry in self.entries)
        return _ENTRY_BYTES * len(self.entries) + _NAME_BYTES * names

    def find(self, query: str, languages: Iterable[str]) -> list[SynonymMatch]:
        """The names in a query that stand for others: the longest first, none within another."""
        text = unicodedata.normalize("NFC", query)
        words, spoken = list(tokenize(text)), sorted(languages)
        forms = {language: [word.form(language) for word in words] for language in spoken}
        found: list[SynonymMatch] = []
        at = 0
        while at < len(words) and len(found) < MOST_MATCHES:
            step = 1
            for length in range(min(MOST_NAME_WORDS, len(words) - at), 0, -1):
                names = self._alternatives(words[at : at + length], forms, at)
                if names:
                    start, end = words[at].start, words[at + length - 1].end
                    found.append(SynonymMatch(text[start:end], start, end, names))
                    step = length
                    break
            at += step
        return found

    def _alternatives(
        self, words: Sequence[Token], forms: dict[str, list[str]], at: int
    ) -> tuple[str, ...]:
        """All names of what these words name, but for the words themselves."""
        numbers = dict.fromkeys(
            chain.from_iterable(
                self._entries_by_form(language).get(tuple(said[at : at + len(words)]), ())
                for language, said in forms.items()
            )
        )
        names: dict[str, None] = {}
        for number in numbers:
            every = self._aliased_names[number]
            if len(words) > 1 or _is_term(words[0], every, forms):
                names.update(dict.fromkeys(every))
        same = {tuple(said[at : at + len(words)]) for said in forms.values()}
        others = (name for name in names if not same & _all_forms(name, forms))
        return tuple(others)[:MOST_NAMES]

    def _entries_by_form(self, language: str) -> dict[tuple[str, ...], list[int]]:
        """Which entries a name may be of, by its words' forms; made when first needed."""
        known = self._forms.get(language)
        if known is None:
            known = self._forms[language] = {}
            for number, names in enumerate(self._aliased_names):
                for name in names:
                    forms = word_forms(name, language)
                    if 0 < len(forms) <= MOST_NAME_WORDS:
                        known.setdefault(forms, []).append(number)
        return known


def word_forms(name: str, language: str) -> tuple[str, ...]:
    """A name by its words' forms: the same for all ways to write it."""
    text = unicodedata.normalize("NFC", name)
    return tuple(token.form(language) for token in tokenize(text))


def _all_forms(name: str, languages: Iterable[str]) -> set[tuple[str, ...]]:
    return {word_forms(name, language) for language in languages}


def _is_term(word: Token, names: Sequence[str], languages: Iterable[str]) -> bool:
    """Whether a word is that name: `it` is hardly `IT`, unless it is written so."""
    if not word.is_stopword(list(languages)):
        return True
    return word.text in names and not word.text.islower()


def synonym_terms(
    words: list[tuple[str, ...]], renamed: Sequence[SynonymMatch], languages: Iterable[str]
) -> dict[int, list[Name]]:
    """Other names of a query's words, by their number.

    Of a part of several words each of them goes by the part's other names: what holds one of these
    holds all of the part. A part of words that say little is added as a word of its own.
    """
    spoken = list(languages)
    names: dict[int, list[Name]] = {}
    for part in renamed:
        said = {terms[0] for terms in query_terms(part.text, spoken)}
        numbers = [number for number, terms in enumerate(words) if terms and terms[0] in said]
        if not numbers:
            numbers = [len(words)]
            words.append(())
        others = [query_terms(name, spoken) for name in part.names if _is_searchable(name, spoken)]
        for number in numbers:
            names.setdefault(number, []).extend(others)
    return names


def _is_searchable(name: str, languages: Sequence[str]) -> bool:
    """Whether it can be looked for: every chunk holds `it`, and few of them mean `IT`."""
    text = unicodedata.normalize("NFC", name)
    return any(not token.is_stopword(languages) for token in tokenize(text))


def expand_query(query: str, renamed: Sequence[SynonymMatch]) -> str:
    """A query with the other names behind each part that has some: what its vector is made of."""
    if not renamed:
        return query
    text, pieces, at = unicodedata.normalize("NFC", query), [], 0
    for part in renamed:
        pieces += [text[at : part.end], f" ({', '.join(part.names[:_NAMES_IN_TEXT])})"]
        at = part.end
    return "".join([*pieces, text[at:]])
