"""Analyses one source: words and phrases with their positions, entities and acronyms."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sluice.worker.features.rag.parsing.reader import has_markup
from sluice.worker.features.workflows.memory_first.text import entities
from sluice.worker.features.workflows.memory_first.text.acronyms import (
    AcronymPair,
    find_acronym_pairs,
)
from sluice.worker.features.workflows.memory_first.text.stopwords import (
    BEFORE_NOUNS,
    BEFORE_VERBS,
    UNSPACED_BREAKING,
    phrase_breakers,
)
from sluice.worker.features.workflows.memory_first.text.tokens import (
    MOST_WORD_CHARS,
    BlockKind,
    Sentence,
    Token,
    iter_sentences,
    tokenize,
)

#: Words of a phrase, and characters of one in scripts without spaces.
MOST_WORDS: Final = 4
MOST_LETTERS: Final = 6
#: Positions kept of each term, and terms kept per source: the most frequent ones.
MOST_OFFSETS: Final = 3
WORDS_KEPT: Final = 2000
PHRASES_KEPT: Final = 500
PAIRS_KEPT: Final = 200
#: Size of the cache of folded words.
_REMEMBERED: Final = 20_000
#: Above this number the rarest terms are dropped, to bound the memory.
_MOST_TRACKED: Final = 100_000
#: Above this number, longer character sequences are counted only if they have occurred before.
_MANY: Final = 20_000
#: Fraction of capitalised words from which on a sentence is a title, whose case says nothing.
_TITLE_SHARE: Final = 0.7
#: Small words in titles.
_IN_TITLES: Final = frozenset(("a", "and", "of", "the"))
_NONE: Final[frozenset[str]] = frozenset()
_GLUE: Final = " \t\r\n*_"
#: Characters after which a capital says nothing.
_OPENERS: Final = frozenset(':"“„«([—–|/*>#')


class SourceText(NamedTuple):
    """Text of a source, with its language and media type."""

    #: Id of its item.
    id: str
    lang: str
    media_type: str
    text: str


class TermCounts:
    """Frequency, positions, headings and spellings of a term."""

    __slots__ = ("alone", "forms", "freq", "heads", "nouns", "offsets", "verbs")

    def __init__(self) -> None:
        self.freq = 0
        self.heads = 0
        self.offsets: list[int] = []
        #: Spellings within sentences: frequency and first position.
        self.forms: dict[str, list[int]] = {}
        #: For words: occurrences in the position of a verb, and of a noun.
        self.verbs = 0
        self.nouns = 0
        #: Occurrences without neighbouring words.
        self.alone = 0

    def add(self, offset: int, form: str, *, in_heading: bool, case_counts: bool) -> None:
        self.freq += 1
        self.heads += in_heading
        if len(self.offsets) < MOST_OFFSETS:
            self.offsets.append(offset)
        if case_counts:
            self.forms.setdefault(form, [0, offset])[0] += 1

    def view(self) -> list[Any]:
        roles = [self.verbs, self.nouns, self.alone]
        return [self.freq, self.heads, self.offsets, self.forms, *roles]


@dataclass
class Analysis:
    """The analysis of one source."""

    words: dict[str, TermCounts] = field(default_factory=dict)
    phrases: dict[str, TermCounts] = field(default_factory=dict)
    entities: dict[tuple[str, str], TermCounts] = field(default_factory=dict)
    pairs: list[AcronymPair] = field(default_factory=list)

    def view(self) -> dict[str, Any]:
        """JSON for later steps; deterministic for a text."""
        kinds = {
            kind: _most_frequent(
                {text: counts for (each, text), counts in self.entities.items() if each == kind}
            )
            for kind in entities.KINDS
        }
        return {
            "words": _most_frequent(self.words, WORDS_KEPT),
            "phrases": _most_frequent(self.phrases, PHRASES_KEPT),
            "entities": {kind: found for kind, found in kinds.items() if found},
            "pairs": [list(pair) for pair in self.pairs[:PAIRS_KEPT]],
        }


def analyse(source: SourceText) -> dict[str, Any]:
    """Analyse a source; returns a JSON-compatible dict."""
    reader = _SentenceReader(source)
    for sentence in iter_sentences(source.text, marked=has_markup(source.media_type)):
        reader.read(sentence)
    return reader.analysis.view()


def analyse_all(sources: Sequence[SourceText]) -> list[dict[str, Any]]:
    return [analyse(source) for source in sources]


@lru_cache(maxsize=_REMEMBERED)
def fold_word(word: str) -> str:
    """A word for comparison: without case and possessive, in composed Unicode form."""
    if not word.isascii():
        word = unicodedata.normalize("NFKC", word).replace("’", "'").replace("\u00ad", "")
    word = word.casefold()
    return (word[:-2] if word.endswith("'s") else word)[:MOST_WORD_CHARS]


class _SentenceReader:
    """Analyses the sentences of a source."""

    def __init__(self, source: SourceText) -> None:
        self.analysis = Analysis()
        self._text = source.text
        self._breaking = phrase_breakers(source.lang)
        self._before_verbs = BEFORE_VERBS.get(source.lang, _NONE)
        self._before_nouns = BEFORE_NOUNS.get(source.lang, _NONE)

    def read(self, sentence: Sentence) -> None:
        found = list(tokenize(self._text, sentence.start, sentence.end))
        in_heading = sentence.kind is BlockKind.HEADING
        case_counts = sentence.kind is BlockKind.PROSE and not _is_title(found)
        self.analysis.pairs.extend(find_acronym_pairs(self._text, sentence.start, sentence.end))
        for kind, text, offset in entities.find_entities(
            self._text, found, self._breaking, case_counts=case_counts
        ):
            counts = self.analysis.entities.setdefault((kind, text), TermCounts())
            counts.add(offset, text, in_heading=in_heading, case_counts=False)
        self._read_runs(found, in_heading=in_heading, case_counts=case_counts)
        _drop_rare(self.analysis.words)
        _drop_rare(self.analysis.phrases)
        _drop_rare(self.analysis.entities)

    def _read_runs(self, found: Sequence[Token], *, in_heading: bool, case_counts: bool) -> None:
        """Count runs of adjacent words that contain no stopword."""
        run: list[tuple[str, Token, bool]] = []
        before: Token | None = None
        leading = ""  # the word before the run
        for token in found:
            gap = self._text[before.end : token.start] if before is not None else ":"
            if gap.strip(_GLUE) or "\n\n" in gap:
                self._count(run, leading, in_heading)
                run, leading = [], ""
            before = token
            if token.kind == "unspaced":
                self._count_letters(token, in_heading)
            word = fold_word(token.text) if token.kind == "word" else ""
            if not word or word in self._breaking or entities.is_identifier(token.text):
                self._count(run, leading, in_heading)
                run, leading = [], word
            else:
                opens = bool(_OPENERS & set(gap)) and not _has_own_case(token.text)
                run.append((word, token, case_counts and not opens))
        self._count(run, leading, in_heading)

    def _count(
        self, run: Sequence[tuple[str, Token, bool]], leading: str, in_heading: bool
    ) -> None:
        words, phrases = self.analysis.words, self.analysis.phrases
        for at, (word, token, case_counts) in enumerate(run):
            if len(word) < 2:
                continue
            counts = words.get(word)
            if counts is None:
                counts = words[word] = TermCounts()
            counts.add(
                token.start, _plain(token.text), in_heading=in_heading, case_counts=case_counts
            )
            name = word
            form = _plain(token.text)
            for word, other, _ in run[at + 1 : at + MOST_WORDS]:
                if len(word) < 2:
                    break
                name = f"{name} {word}"
                form = f"{form} {_plain(other.text)}"
                counts = phrases.get(name)
                if counts is None:
                    counts = phrases[name] = TermCounts()
                counts.add(token.start, form, in_heading=in_heading, case_counts=case_counts)
        if run and (first := words.get(run[0][0])) is not None:
            first.alone += len(run) == 1
            first.verbs += leading in self._before_verbs
            first.nouns += len(run) == 1 and leading in self._before_nouns

    def _count_letters(self, token: Token, in_heading: bool) -> None:
        """In scripts without spaces, any short sequence of characters may be a word."""
        phrases, text = self.analysis.phrases, token.text
        for at, letter in enumerate(text):
            if letter in UNSPACED_BREAKING:
                continue
            for end in range(at + 1, min(len(text), at + MOST_LETTERS)):
                if text[end] in UNSPACED_BREAKING:
                    break
                name = text[at : end + 1]
                counts = phrases.get(name)
                if counts is None:
                    counts = phrases[name] = TermCounts()
                counts.add(token.start + at, name, in_heading=in_heading, case_counts=False)
                if counts.freq == 1 and len(phrases) > _MANY:  # longer ones cannot be frequent yet
                    break


def _plain(word: str) -> str:
    """A word without its possessive."""
    return word[:-2] if word.endswith(("'s", "’s")) else word


def _has_own_case(word: str) -> bool:
    """True if a word has fixed capitals: `PostgreSQL`, `iPhone`."""
    return not (word.islower() or word[1:].islower() or word.isupper())


def _is_title(found: Sequence[Token]) -> bool:
    words = [token.text for token in found if token.kind == "word" and token.text not in _IN_TITLES]
    if len(words) < 2:
        return len(found) < 4
    return sum(word[0].isupper() for word in words) >= _TITLE_SHARE * len(words)


def _drop_rare(terms: dict[Any, TermCounts]) -> None:
    """If there are too many terms, drop the rarest until half of the limit is left."""
    if len(terms) <= _MOST_TRACKED:
        return
    freq = 1
    while 2 * len(terms) > _MOST_TRACKED:
        for name in [name for name, counts in terms.items() if counts.freq <= freq]:
            del terms[name]
        freq *= 2


def _most_frequent(found: Mapping[str, TermCounts], most: int = WORDS_KEPT) -> dict[str, list[Any]]:
    """The most frequent terms, ordered by name."""
    best = sorted(found.items(), key=lambda item: (-item[1].freq, -item[1].heads, item[0]))[:most]
    return {name: counts.view() for name, counts in sorted(best, key=lambda item: item[0])}
