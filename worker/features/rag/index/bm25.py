"""BM25 over chunks, in memory: for each term the chunks that hold it, and how often."""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

#: How soon more of the same term stops to matter, and how much long chunks are held back.
K1: Final = 1.2
B: Final = 0.75
#: Bytes that a term and a posting take, for the sum of what an index takes.
TERM_BYTES: Final = 300
POSTING_BYTES: Final = 6
_MOST_COUNT: Final = 0xFFFF
#: To look a chunk up among a term's takes about as long as to go through so many of them.
_LOOKUP_COST: Final = 8


class Posting(NamedTuple):
    """The chunks that hold a term, by number and ascending, and how often each does."""

    chunks: array[int]
    counts: array[int]


#: Another name for a word: its words, all of which a chunk must hold; each by all its terms.
Name = Sequence[Sequence[str]]


class _QueryWord(NamedTuple):
    """A word of a query: what a chunk can get for it at most, and who holds it."""

    weight: float
    chunks: Sequence[int]
    counts: Sequence[float]


class Bm25Index:
    """Numbers chunks as they come. Those taken away keep their numbers until `compact`."""

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
        """About how much memory it takes."""
        return len(self._postings) * TERM_BYTES + self._posting_count * POSTING_BYTES

    @property
    def wasted(self) -> float:
        """The share of its chunks that were taken away."""
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
        """Forget those that were taken away; returns the new number of each old one."""
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
        """How many postings a search would look at, at most."""
        found = (self._postings.get(term) for word in words for term in word)
        return sum(len(posting.chunks) for posting in found if posting is not None)

    def search(self, words: Sequence[Sequence[str]], most: int) -> list[tuple[int, float]]:
        """The best chunks for some words, each given by all terms that stand for it."""
        return self._best([self._sought(word) for word in words], most)

    def shares(
        self,
        words: Sequence[Sequence[str]],
        most: int,
        names: Mapping[int, Sequence[Name]] | None = None,
    ) -> list[tuple[int, float]]:
        """The same, with scores as shares of what could be got, by words that nobody holds too.

        `names` has other names of some words, by their number.
        """
        sought = [self._sought(word) for word in words]
        for number, others in (names or {}).items():
            sought[number] = self._with_synonyms(sought[number], others)
        whole = sum(found.weight or self._weight(0) for found in sought)
        return [(number, score / whole) for number, score in self._best(sought, most)]

    def _best(self, every: Sequence[_QueryWord], most: int) -> list[tuple[int, float]]:
        """Rare words go first. Once what is left to come could not bring a new chunk among the
        best, common words only add to the chunks that are there already."""
        sought = [found for found in every if found.chunks]
        sought.sort(key=lambda found: found.weight, reverse=True)
        to_come = sum(found.weight for found in sought)
        scores: dict[int, float] = {}
        for found in sought:
            if len(scores) >= most and to_come < heapq.nlargest(most, scores.values())[-1]:
                self._add_to_known(scores, found)
            else:
                self._add(scores, found)
            to_come -= found.weight
        best = heapq.nsmallest(most, scores.items(), key=lambda item: (-item[1], item[0]))
        return [(number, score) for number, score in best]

    def _sought(self, word: Sequence[str]) -> _QueryWord:
        found = [self._postings[term] for term in word if term in self._postings]
        if not found:
            return _QueryWord(0.0, (), ())
        if len(found) == 1:
            chunks, counts = found[0]
            return _QueryWord(self._weight(len(chunks)), chunks, counts)
        together: dict[int, int] = {}
        for chunks, counts in found:
            for number, count in zip(chunks, counts):
                together[number] = together.get(number, 0) + count
        numbers = sorted(together)
        return _QueryWord(
            self._weight(len(numbers)), numbers, [together[number] for number in numbers]
        )

    def _with_synonyms(self, found: _QueryWord, names: Sequence[Name]) -> _QueryWord:
        """A word that goes by other names too. However often these come up, they count for less
        than the word itself once does: what says it in the query's words goes first."""
        renamed: dict[int, float] = {}
        for name in names:
            for number, count in self._holders(name).items():
                renamed[number] = renamed.get(number, 0.0) + count
        if not renamed:
            return found
        together = {number: float(count) for number, count in zip(found.chunks, found.counts)}
        for number, count in renamed.items():
            together[number] = together.get(number, 0.0) + count / (count + 1)
        numbers = sorted(together)
        return _QueryWord(
            self._weight(len(numbers)), numbers, [together[number] for number in numbers]
        )

    def _holders(self, name: Name) -> dict[int, float]:
        """The chunks that hold all words of a name, and how often they can have it at most."""
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
        """What is added to a term's count: so much, and so much for each term of the chunk."""
        average = self._length_sum / max(1, len(self)) or 1.0
        return K1 * (1 - B), K1 * B / average


def _matches_in_scores(scores: Mapping[int, float], found: _QueryWord) -> list[tuple[int, float]]:
    """Those of the known chunks that hold a word, and how often: by the shorter way."""
    chunks, counts = found.chunks, found.counts
    if len(chunks) < len(scores) * _LOOKUP_COST:
        return [(number, count) for number, count in zip(chunks, counts) if number in scores]
    places = ((number, bisect_left(chunks, number)) for number in scores)
    return [
        (number, counts[at]) for number, at in places if at < len(chunks) and chunks[at] == number
    ]
