"""The ontology of a namespace: terms with synonyms, and how they expand a query."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from sluice.common.features.rag.ontology import TermEntry
from sluice.worker.features.rag.index.bm25 import Name
from sluice.worker.features.rag.text.terms import Token, query_terms, tokenize

#: Matches per query, and synonyms used of each.
MOST_MATCHES: Final = 16
MOST_NAMES: Final = 16
#: Words of the longest name that is matched.
MOST_NAME_WORDS: Final = 12
#: Synonyms added to the text of which the query's vector is computed.
_NAMES_IN_TEXT: Final = 3
#: Estimated memory of an entry and of each of its names.
_ENTRY_BYTES: Final = 300
_NAME_BYTES: Final = 400


class SynonymMatch(NamedTuple):
    """A part of a query that has synonyms: `text[start:end]` of the query in NFC."""

    text: str
    start: int
    end: int
    names: tuple[str, ...]


class Ontology:
    """The terms of a namespace. `find` is not thread-safe."""

    def __init__(self, entries: Iterable[TermEntry] = (), version: bytes = b"") -> None:
        self.entries = tuple(entries)
        #: Version in Redis; empty if there is no ontology.
        self.version = version
        #: Entries without aliases cannot expand a query.
        self._aliased_names = [entry.names for entry in self.entries if entry.aliases]
        self._forms: dict[str, dict[tuple[str, ...], list[int]]] = {}

    def __bool__(self) -> bool:
        """True if it can expand a query."""
        return bool(self._aliased_names)

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        names = sum(len(entry.names) for entry in self.entries)
        return _ENTRY_BYTES * len(self.entries) + _NAME_BYTES * names

    def find(self, query: str, languages: Iterable[str]) -> list[SynonymMatch]:
        """The names in a query that have synonyms: longest match first, without overlaps."""
        text = unicodedata.normalize("NFC", query)
        words, codes = list(tokenize(text)), sorted(languages)
        forms = {language: [word.form(language) for word in words] for language in codes}
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
        """All names of the entries that these words match, except the words themselves."""
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
        """Entries by the forms of their names' words; built on demand."""
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
    """The forms of a name's words; equal for all spellings of it."""
    text = unicodedata.normalize("NFC", name)
    return tuple(token.form(language) for token in tokenize(text))


def _all_forms(name: str, languages: Iterable[str]) -> set[tuple[str, ...]]:
    return {word_forms(name, language) for language in languages}


def _is_term(word: Token, names: Sequence[str], languages: Iterable[str]) -> bool:
    """True if the word is meant as the term: `it` matches `IT` only if it is written so."""
    if not word.is_stopword(list(languages)):
        return True
    return word.text in names and not word.text.islower()


def synonym_terms(
    words: list[tuple[str, ...]], renamed: Sequence[SynonymMatch], languages: Iterable[str]
) -> dict[int, list[Name]]:
    """Synonyms of a query's words, by the index of the word.

    Each word of a matched part gets the synonyms of the whole part, because a chunk with a synonym
    covers all of it. A part of stopwords is added as a further word.
    """
    codes = list(languages)
    names: dict[int, list[Name]] = {}
    for part in renamed:
        present = {terms[0] for terms in query_terms(part.text, codes)}
        numbers = [number for number, terms in enumerate(words) if terms and terms[0] in present]
        if not numbers:
            numbers = [len(words)]
            words.append(())
        others = [query_terms(name, codes) for name in part.names if _is_searchable(name, codes)]
        for number in numbers:
            names.setdefault(number, []).extend(others)
    return names


def _is_searchable(name: str, languages: Sequence[str]) -> bool:
    """True if it has a word that is not a stopword: most chunks contain `it`, few mean `IT`."""
    text = unicodedata.normalize("NFC", name)
    return any(not token.is_stopword(languages) for token in tokenize(text))


def expand_query(query: str, renamed: Sequence[SynonymMatch]) -> str:
    """The query with synonyms in parentheses after each match; its vector is computed from this."""
    if not renamed:
        return query
    text, pieces, at = unicodedata.normalize("NFC", query), [], 0
    for part in renamed:
        pieces += [text[at : part.end], f" ({', '.join(part.names[:_NAMES_IN_TEXT])})"]
        at = part.end
    return "".join([*pieces, text[at:]])
