"""Extractive summaries: the most central sentences of a text, without repetition."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluice.worker.features.rag.parsing.reader import has_markup
from sluice.worker.features.rag.text.languages import COMMON_WORDS, ENGLISH
from sluice.worker.features.rag.text.terms import terms
from sluice.worker.features.workflows.memory_first.text.analysis import SourceText
from sluice.worker.features.workflows.memory_first.text.stopwords import phrase_breakers, word_set
from sluice.worker.features.workflows.memory_first.text.tokens import BlockKind, iter_sentences

#: Length of a sentence that can be part of a summary.
FEWEST_WORDS: Final = 5
MOST_WORDS: Final = 60
MOST_CHARS: Final = 600
#: Weight of novelty relative to centrality.
_NOVELTY_WEIGHT: Final = 0.3
#: Bonus for sentences at the beginning, and its decay in sentences.
_POSITION: Final = 0.5
_FADES: Final = 8.0
#: Sentences considered per source, candidates per source for the overall summary, and for a model.
_SHORTLIST: Final = 120
PER_SOURCE: Final = 4
_FOR_MODEL: Final = 40
#: Similarity from which on two sentences are the same.
_SAME: Final = 0.75

_FEWEST_CHARS: Final = 12
_ENOUGH_WORDS: Final = 10
_ENDS: Final = ".!?…。！？｡"
_CODE: Final = re.compile(r"`[^`\n]{1,200}`")
_EMPHASIS: Final = re.compile(r"\*\*|__|(?<![\w*])\*(?=\w)|(?<=[\w.!?])\*(?![\w*])")
_LINK: Final = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\s]{0,500}\)")
#: First words that refer to the previous sentence.
_BACK_REFERENCES: Final = word_set(
    "it its they them their this these that those he she his her then there here so but also "
    "and or yet not no however therefore thus hence such both neither either otherwise instead "
    "er sie es dies diese dieser dieses dann aber auch daher deshalb il elle ils elles cela "
    "mais donc él ella ellos esto pero también"
)
_BACK_REFERENCE_FACTOR: Final = 0.6

Vector = Mapping[str, float]


class RankedSentence(NamedTuple):
    """A sentence of a source, `text[start:end]`, with its score."""

    source: str
    start: int
    end: int
    text: str
    score: float

    def location(self) -> dict[str, Any]:
        return {"source": self.source, "offset": self.start}


class _SentenceVector(NamedTuple):
    sentence: RankedSentence
    vector: Vector


def summarize_source(
    source: SourceText, count: int
) -> tuple[list[RankedSentence], list[RankedSentence]]:
    """The summary of a source in order, and further sentences, best first."""
    ranked = _rank(source)
    best = _pick_diverse(ranked, max(count, _FOR_MODEL))
    chosen = [candidate.sentence for candidate in best]
    return sort_by_position(chosen[:count]), chosen


def summarize_all(
    sources: Sequence[SourceText], count: int
) -> list[tuple[list[RankedSentence], list[RankedSentence]]]:
    return [summarize_source(source, count) for source in sources]


def summarize_overall(
    candidates: Sequence[Sequence[RankedSentence]], languages: Mapping[str, str], count: int
) -> list[RankedSentence]:
    """The summary of all sources, from the best sentences of each, in order."""
    candidates = [source[:PER_SOURCE] for source in candidates]
    every = [chosen for source in candidates for chosen in source]
    if not every:
        return []
    vectors = _weigh([_count_terms(each.text, languages[each.source]) for each in every])
    centre = _centre(vectors)
    order = {source[0].source: number for number, source in enumerate(candidates) if source}
    best_of = {
        source[0].source: max(each.score for each in source) for source in candidates if source
    }
    ranked = [
        _SentenceVector(
            chosen._replace(score=_overall_score(chosen, best_of, vector, centre)), vector
        )
        for chosen, vector in zip(every, vectors)
    ]
    ranked.sort(
        key=lambda each: (-each.sentence.score, order[each.sentence.source], each.sentence.start)
    )
    best = [candidate.sentence for candidate in _pick_diverse(ranked, count)]
    return sorted(best, key=lambda each: (order[each.source], each.start))


def _overall_score(
    chosen: RankedSentence, best_of: Mapping[str, float], vector: Vector, centre: Vector
) -> float:
    """Score by relevance for its own source and for all sources together."""
    own = chosen.score / (best_of[chosen.source] or 1.0)
    return round(own * (0.3 + _cosine(vector, centre)) * _fullness(vector), 6)


def sort_by_position(chosen: Sequence[RankedSentence]) -> list[RankedSentence]:
    """Sentences of one source in their order."""
    return sorted(chosen, key=lambda each: each.start)


def join_sentences(chosen: Sequence[RankedSentence]) -> str:
    return " ".join(_end_sentence(" ".join(_plain(each.text).split())) for each in chosen)


def _plain(text: str) -> str:
    """A sentence without Markdown emphasis and links."""
    return _EMPHASIS.sub("", _LINK.sub(r"\1", text))


def _rank(source: SourceText) -> list[_SentenceVector]:
    found = list(_sentences(source))
    vectors = _weigh([_count_terms(text, source.lang) for _, _, text in found])
    centre = _centre(vectors)
    ranked = []
    for number, ((start, end, text), vector) in enumerate(zip(found, vectors)):
        near = _cosine(vector, centre)
        early = _POSITION * math.exp(-number / _FADES)
        worth = near * (1 + early) + 0.1 * early
        if _first_word(text) in _BACK_REFERENCES:
            worth *= _BACK_REFERENCE_FACTOR
        worth = round(worth * _plainness(text) * _fullness(vector), 6)
        ranked.append(_SentenceVector(RankedSentence(source.id, start, end, text, worth), vector))
    ranked.sort(key=lambda each: (-each.sentence.score, each.sentence.start))
    return ranked[:_SHORTLIST]


def _sentences(source: SourceText) -> Iterator[tuple[int, int, str]]:
    """Sentences of prose that are understandable alone; if there are none, any text."""
    spans = [
        (sentence.start, sentence.end, source.text[sentence.start : sentence.end])
        for sentence in iter_sentences(source.text, marked=has_markup(source.media_type))
        if sentence.kind is BlockKind.PROSE and sentence.end - sentence.start <= MOST_CHARS
    ]
    good = [span for span in spans if _stands_alone(span[2])]
    if good:
        yield from good
        return
    if spans:
        yield from spans
        return
    text = source.text[:MOST_CHARS].strip()  # a table, code, or one very long line
    start = source.text.find(text)
    yield start, start + len(text), text


def _stands_alone(text: str) -> bool:
    prose = _CODE.sub(" ", text)
    words = prose.split()
    if len(words) < FEWEST_WORDS and text.isascii():
        return False
    if len(words) > MOST_WORDS or len(text) < _FEWEST_CHARS or 2 * len(prose) < len(text):
        return False
    if text.rstrip("\"'”’»)]*`")[-1:] not in _ENDS:
        return False
    letters = sum(sign.isalpha() or sign.isspace() for sign in prose)
    return 3 * letters >= 2 * len(prose)


def _first_word(text: str) -> str:
    return text[:40].lstrip("*_\"'“„«([").split(" ", 1)[0].strip(",.:;").casefold()


def _plainness(text: str) -> float:
    """Factor that favours prose over inline code."""
    return 0.5 + 0.5 * len(_CODE.sub("", text)) / max(1, len(text))


def _fullness(vector: Vector) -> float:
    """Factor that penalises short sentences, which are similar to everything."""
    return min(1.0, math.sqrt(len(vector) / _ENOUGH_WORDS))


def _count_terms(text: str, language: str) -> dict[str, int]:
    known = language if language in COMMON_WORDS else ENGLISH
    little = phrase_breakers(known)
    counts: dict[str, int] = {}
    for term in terms(_CODE.sub(" ", text), known):
        # Numbers would make otherwise equal sentences different.
        if term.partition(":")[2] not in little and not term.isdigit():
            counts[term] = counts.get(term, 0) + 1
    return counts


def _weigh(counts: Sequence[Mapping[str, int]]) -> list[dict[str, float]]:
    """Unit vectors with TF-IDF weights."""
    holders: dict[str, int] = {}
    for each in counts:
        for term in each:
            holders[term] = holders.get(term, 0) + 1
    vectors = []
    for each in counts:
        weighted = {
            term: (1 + math.log(count)) * math.log(1 + len(counts) / holders[term])
            for term, count in each.items()
        }
        vectors.append(_unit(weighted))
    return vectors


def _centre(vectors: Sequence[Vector]) -> dict[str, float]:
    total: dict[str, float] = {}
    for vector in vectors:
        for term, weight in vector.items():
            total[term] = total.get(term, 0.0) + weight
    return _unit(total)


def _unit(vector: Mapping[str, float]) -> dict[str, float]:
    length = math.sqrt(math.fsum(weight * weight for weight in vector.values()))
    return {term: weight / length for term, weight in vector.items()} if length else {}


def _cosine(one: Vector, other: Vector) -> float:
    return math.fsum(weight * other.get(term, 0.0) for term, weight in one.items())


def _pick_diverse(ranked: Sequence[_SentenceVector], count: int) -> list[_SentenceVector]:
    """Maximal marginal relevance: the best sentences that differ from each other, best first."""
    left = list(ranked)
    nearest = [0.0] * len(left)
    chosen: list[_SentenceVector] = []
    while left and len(chosen) < count:
        best = max(
            range(len(left)),
            key=lambda at: (
                (1 - _NOVELTY_WEIGHT) * left[at].sentence.score - _NOVELTY_WEIGHT * nearest[at],
                -at,
            ),
        )
        pick = left.pop(best)
        nearest.pop(best)
        chosen.append(pick)
        kept = []
        for candidate, near in zip(left, nearest):
            similarity = _cosine(candidate.vector, pick.vector)
            if similarity < _SAME:
                kept.append((candidate, max(near, similarity)))
        left, nearest = [each[0] for each in kept], [each[1] for each in kept]
    return chosen


def _end_sentence(text: str) -> str:
    return text if text[-1:] in '.!?…。！？｡"”’»)' else f"{text}."
