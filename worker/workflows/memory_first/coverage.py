"""How much of the sources the ontology covers: which of their passages hold a term."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from worker.rag.chunking import chunks
from worker.rag.languages import language_of
from worker.rag.ontology import LONGEST, forms_of
from worker.rag.reading import is_marked
from worker.rag.words import tokens
from worker.workflows.memory_first.analysis import Text

#: Terms that say too little to be found by.
_SHORTEST: Final = 2


class Coverage(NamedTuple):
    """Sources and passages, and those of them that hold at least one term."""

    sources: int = 0
    covered_sources: int = 0
    chunks: int = 0
    covered_chunks: int = 0

    def plus(self, other: Coverage) -> Coverage:
        """Both together."""
        return Coverage(*(mine + theirs for mine, theirs in zip(self, other)))


def coverage(texts: Sequence[Text], names: Sequence[str]) -> Coverage:
    """Of some sources by the names of all terms. Takes long: for a process of its own."""
    known: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    whole = Coverage()
    for text in texts:
        language = language_of(text.text)
        if language not in known:
            known[language] = _by_first(names, language)
        spans = chunks(text.text, marked=is_marked(text.media_type))
        covered = sum(
            _holds(text.text[span.start : span.end], known[language], language) for span in spans
        )
        whole = whole.plus(Coverage(1, 1 if covered else 0, len(spans), covered))
    return whole


def _by_first(names: Iterable[str], language: str) -> dict[str, list[tuple[str, ...]]]:
    """Names by their first word's form."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for name in names:
        forms = forms_of(name, language)
        if 0 < len(forms) <= LONGEST and len(name) >= _SHORTEST:
            found.setdefault(forms[0], []).append(forms)
    return found


def _holds(passage: str, names: dict[str, list[tuple[str, ...]]], language: str) -> bool:
    words = [token.form(language) for token in tokens(unicodedata.normalize("NFC", passage))]
    return any(
        tuple(words[at : at + len(name)]) == name
        for at, word in enumerate(words)
        for name in names.get(word, ())
    )
