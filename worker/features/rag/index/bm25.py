"""In-memory BM25 index over chunks: for each term, the chunks that contain it and how often."""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

#: Standard BM25 parameters: saturation of the term count, and normalisation by chunk length.
K1: Final = 1.2
B: Final = 0.75
#: Estimated memory of a term and of a posting, for `size_bytes`.
TERM_BYTES: Final = 300
POSTING_BYTES: Final = 6
_MOST_COUNT: Final = 0xFFFF
#: A binary search for a chunk costs about as much as scanning this many postings.
_LOOKUP_COST: Final = 8


class Posting(NamedTuple):
    """The numbers of the chunks that contain a term, ascending, and how often each does."""

    chunks: array[int]
    counts: array[int]


#: A synonym: its words, all of which a chunk must contain; each word given by all its terms.
Name = Sequence[Sequence[str]]


class _QueryWord(NamedTuple):
    """A word of a query: the highest score it can add, and the chunks that contain it."""

    weight: float
    chunks: Sequence[int]
    counts: Sequence[float]


class Bm25Index:
    """Numbers chunks in order of arrival. Removed chunks keep their numbers until `compact`."""

    def __init__(self) -> None:
        self._postings: dict[str, Posting] = {}
        self._lengths = array("I")
        self._gone = bytearray()
        self._gone_count = 0
        self._length_sum = 0
        self._posting_count = 0

    def __len__(self) -> int:
        return len(self._lengths) - self._gone_count

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return len(self._postings) * TERM_BYTES + self._posting_count * POSTING_BYTES

    @property
    def wasted(self) -> float:
        """Fraction of removed chunks."""
        return self._gone_count / len(self._lengths) if self._lengths else 0.0

    def add(self, counts: Mapping[str, int]) -> int:
        """Add a chunk by its terms; returns its number."""
        number = len(self._lengths)
        postings = self._postings
        for term, count in counts.items():
            posting = postings.get(term)
            if posting is None:
                posting = postings[term] = Posting(array("I"), array("H"))
            posting.chunks.append(number)
            posting.counts.append(min(count, _MOST_COUNT))
        length = sum(counts.values())
        self._posting_count += len(counts)
        self._lengths.append(length)
        self._gone.append(0)
        self._length_sum += length
        return number

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if not self._gone[number]:
                self._gone[number] = 1
                self._gone_count += 1
                self._length_sum -= self._lengths[number]

    def compact(self) -> array[int]:
        """Drop removed chunks; returns the new number of each old one."""
        renumbered = array("I", bytes(4 * len(self._lengths)))
        lengths = array("I")
        for number, length in enumerate(self._lengths):
            renumbered[number] = len(lengths)
            if not self._gone[number]:
                lengths.append(length)
        postings: dict[str, Posting] = {}
        self._posting_count = 0
        for term, posting in self._postings.items():
            kept = [at for at, number in enumerate(posting.chunks) if not self._gone[number]]
            if kept:
                postings[term] = Posting(
                    array("I", (renumbered[posting.chunks[at]] for at in kept)),
                    array("H", (posting.counts[at] for at in kept)),
                )
                self._posting_count += len(kept)
        self._postings, self._lengths = postings, lengths
        self._gone, self._gone_count = bytearray(len(lengths)), 0
        return renumbered

    def cost(self, words: Sequence[Sequence[str]]) -> int:
        """Upper bound of the postings that a search visits."""
        found = (self._postings.get(term) for word in words for term in word)
        return sum(len(posting.chunks) for posting in found if posting is not None)

    def search(self, words: Sequence[Sequence[str]], most: int) -> list[tuple[int, float]]:
        """The best chunks for a query; each word is given by all its terms."""
        return self._best([self._sought(word) for word in words], most)

    def shares(
        self,
        words: Sequence[Sequence[str]],
        most: int,
        names: Mapping[int, Sequence[Name]] | None = None,
    ) -> list[tuple[int, float]]:
        """Like `search`, with scores as fractions of the possible maximum.

        Words that no chunk contains count towards the maximum. `names` has synonyms of words, by
        the word's index in `words`.
        """
        sought = [self._sought(word) for word in words]
        for number, others in (names or {}).items():
            sought[number] = self._with_synonyms(sought[number], others)
        whole = sum(found.weight or self._weight(0) for found in sought)
        return [(number, score / whole) for number, score in self._best(sought, most)]

    def _best(self, every: Sequence[_QueryWord], most: int) -> list[tuple[int, float]]:
        """Score the words, rare ones first.

        Once the remaining words cannot lift a new chunk into the best ones, they only add to chunks
        that already have a score.
        """
        sought = [found for found in every if found.chunks]
        sought.sort(key=lambda found: found.weight, reverse=True)
        remaining = sum(found.weight for found in sought)
        scores: dict[int, float] = {}
        for found in sought:
            if len(scores) >= most and remaining < heapq.nlargest(most, scores.values())[-1]:
                self._add_to_known(scores, found)
            else:
                self._add(scores, found)
            remaining -= found.weight
        best = heapq.nsmallest(most, scores.items(), key=lambda item: (-item[1], item[0]))
        return [(number, score) for number, score in best]

    def _sought(self, word: Sequence[str]) -> _QueryWord:
        found = [self._postings[term] for term in word if term in self._postings]
        if not found:
            return _QueryWord(0.0, (), ())
        if len(found) == 1:
            chunks, counts = found[0]
            return _QueryWord(self._weight(len(chunks)), chunks, counts)
        merged: dict[int, int] = {}
        for chunks, counts in found:
            for number, count in zip(chunks, counts):
                merged[number] = merged.get(number, 0) + count
        numbers = sorted(merged)
        return _QueryWord(
            self._weight(len(numbers)), numbers, [merged[number] for number in numbers]
        )

    def _with_synonyms(self, found: _QueryWord, names: Sequence[Name]) -> _QueryWord:
        """Add synonyms to a word.

        However often they occur, they count less than one occurrence of the word itself: chunks in
        the query's own words rank first.
        """
        counts: dict[int, float] = {}
        for name in names:
            for number, count in self._holders(name).items():
                counts[number] = counts.get(number, 0.0) + count
        if not counts:
            return found
        merged = {number: float(count) for number, count in zip(found.chunks, found.counts)}
        for number, count in counts.items():
            merged[number] = merged.get(number, 0.0) + count / (count + 1)
        numbers = sorted(merged)
        return _QueryWord(
            self._weight(len(numbers)), numbers, [merged[number] for number in numbers]
        )

    def _holders(self, name: Name) -> dict[int, float]:
        """The chunks that contain all words of a synonym, and its highest possible counts."""
        words = sorted((self._sought(word) for word in name), key=lambda word: len(word.chunks))
        holders: dict[int, float] = dict(zip(words[0].chunks, words[0].counts)) if words else {}
        for word in words[1:]:
            known = _matches_in_scores(holders, word)
            holders = {number: min(holders[number], count) for number, count in known}
        return holders

    def _weight(self, holders: int) -> float:
        every = len(self._lengths)
        return math.log(1 + (every - holders + 0.5) / (holders + 0.5)) * (K1 + 1)

    def _add(self, scores: dict[int, float], found: _QueryWord) -> None:
        gone, lengths, weight = self._gone, self._lengths, found.weight
        base, slope = self._norms()
        for number, count in zip(found.chunks, found.counts):
            if not gone[number]:
                score = weight * count / (count + base + slope * lengths[number])
                scores[number] = scores.get(number, 0.0) + score

    def _add_to_known(self, scores: dict[int, float], found: _QueryWord) -> None:
        base, slope = self._norms()
        for number, count in _matches_in_scores(scores, found):
            norm = base + slope * self._lengths[number]
            scores[number] += found.weight * count / (count + norm)

    def _norms(self) -> tuple[float, float]:
        """Length normalisation added to a term's count: a constant, and a factor per term of the
        chunk.
        """
        average = self._length_sum / max(1, len(self)) or 1.0
        return K1 * (1 - B), K1 * B / average


def _matches_in_scores(scores: Mapping[int, float], found: _QueryWord) -> list[tuple[int, float]]:
    """The chunks in `scores` that contain a word, with its count; by scan or binary search."""
    chunks, counts = found.chunks, found.counts
    if len(chunks) < len(scores) * _LOOKUP_COST:
        return [(number, count) for number, count in zip(chunks, counts) if number in scores]
    positions = ((number, bisect_left(chunks, number)) for number in scores)
    return [
        (number, counts[at])
        for number, at in positions
        if at < len(chunks) and chunks[at] == number
    ]
