"""Turns text into index terms: stems, identifiers and their parts, and pairs of characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from sluice.worker.features.rag.text.languages import COMMON_WORDS, stem

#: Longer words are cut: stemming them is slow, and queries do not contain them.
MOST_CHARS: Final = 64
#: Most distinct words of a query.
MOST_WORDS: Final = 64

#: Scripts without spaces between words.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
#: Combining marks, most of which `\w` does not include.
_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u200c\u200d"
)
_RUN: Final = re.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    rf"|(?P<number>[0-9]+(?:[.,][0-9]+)+)"
    rf"|(?P<word>[^\W{_UNSPACED}]+(?:[{_MARKS}]+[^\W{_UNSPACED}]*)*)"
)
_APOSTROPHES: Final = "'’"
#: Parts of an identifier: `HTTPServer`, `jobId`, `sha256`.
_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|[0-9]+|[^\W_]")
#: Plural of an acronym, such as `DLQs`; stemmers do not handle it because it has no vowel.
_SHORT_FORMS: Final = re.compile(r"[A-Z0-9]{2,}s\Z")
_INVISIBLE: Final = {ord(mark): None for mark in "\u00ad\u200b\u200c\u200d\u2060\ufeff"}


class Token(NamedTuple):
    """A word of a text, or a character of a script without spaces."""

    text: str
    start: int
    end: int

    def form(self, language: str) -> str:
        """Normal form: the stem, without case and accents."""
        folded = _folded(self.text[:-1] if _SHORT_FORMS.match(self.text) else self.text)
        return folded if folded.isdigit() else _unmarked(stem(folded, language))

    def is_stopword(self, languages: Collection[str]) -> bool:
        folded = _folded(self.text)
        return any(folded in COMMON_WORDS[language] for language in languages)


def tokenize(text: str) -> Iterator[Token]:
    """The words of a text in NFC, with their positions."""
    for match in _RUN.finditer(text):
        start, end = match.span()
        if match.lastgroup == "unspaced":
            yield from (Token(text[at], at, at + 1) for at in range(start, end))
        else:
            yield Token(match[0], start, end)


def terms(text: str, language: str) -> Iterator[str]:
    """Every term of a text in this language, with repetitions."""
    for kind, run in _runs(text):
        if kind == "word":
            yield from _word_terms(run, language)
        elif kind == "unspaced":
            yield from run
            yield from _pairs(run)
        else:
            yield run
            yield from re.split(r"[.,]", run)


def query_terms(text: str, languages: Collection[str]) -> list[tuple[str, ...]]:
    """The words of a query, each given by its terms in all languages.

    Stopwords count only if there are no other words.
    """
    content: dict[tuple[str, ...], set[str]] = {}
    common: dict[tuple[str, ...], set[str]] = {}
    for kind, run in _runs(text):
        if kind == "unspaced":
            content.update(((pair,), set()) for pair in (_pairs(run) if len(run) > 1 else run))
            continue
        if kind == "number":
            content[(run,)] = set()
            continue
        whole, parts = _split(run)
        if whole:
            content[(whole,)] = set()
        for part in parts:
            folded = _folded(part)
            stems = tuple(dict.fromkeys(_term(part, each) for each in sorted(languages)))
            is_common = any(folded in COMMON_WORDS[language] for language in languages)
            # An identifier in a text may be a plain word in a query: `iPhone`, `iphone`.
            (common if is_common else content).setdefault(stems, set()).add(_unmarked(folded))
    groups = (content or common).items()
    return [tuple(dict.fromkeys((*stems, *sorted(more)))) for stems, more in groups][:MOST_WORDS]


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """The runs of letters and digits in a text, with the kind of each."""
    text = unicodedata.normalize("NFC", text)
    for match in _RUN.finditer(text):
        run = match[0]
        if len(run) == 1 and _is_leftover(text, match.start()):
            continue
        yield match.lastgroup or "", run


def _is_leftover(text: str, at: int) -> bool:
    """True for a single letter cut off by an apostrophe: the s of `it's`, the l of `l'eau`."""
    around = text[max(0, at - 1) : at] + text[at + 1 : at + 2]
    return text[at].isalpha() and any(mark in around for mark in _APOSTROPHES)


def _pairs(run: str) -> Iterator[str]:
    return (run[at : at + 2] for at in range(len(run) - 1))


@lru_cache(maxsize=50_000)
def _word_terms(run: str, language: str) -> tuple[str, ...]:
    whole, parts = _split(run)
    found = [_term(part, language) for part in parts]
    return (whole, *found) if whole else tuple(found)


def _split(run: str) -> tuple[str, list[str]]:
    """An identifier in lower case, and its parts; for a plain word, '' and the word."""
    run = run[: 4 * MOST_CHARS]
    parts = _PARTS.findall(run) if _is_identifier(run) else [run]
    if parts and parts != [run]:
        return _unmarked(_folded(run)), parts
    return "", parts


def _is_identifier(run: str) -> bool:
    if "_" in run:
        return True
    if not run.isascii() or run.isdigit():
        return False
    plain = run.islower() or run.isupper() or run[1:].islower()
    return not (plain and run.isalpha())


def _term(word: str, language: str) -> str:
    """Terms carry their language, so that equal stems of two languages differ; numbers do not."""
    folded = _folded(word)
    if folded.isdigit():
        return folded
    return f"{language}:{_unmarked(stem(folded, language))}"


def _folded(word: str) -> str:
    folded = unicodedata.normalize("NFKC", word).casefold().translate(_INVISIBLE)
    return folded[:MOST_CHARS]


def _unmarked(word: str) -> str:
    if word.isascii():
        return word
    marks = unicodedata.normalize("NFD", word)
    return "".join(mark for mark in marks if not unicodedata.combining(mark)) or word
