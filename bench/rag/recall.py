"""How soon a right passage comes among those that are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.rag.corpus import Corpus
from bench.rag.questions import Kind, Question
from common.contracts.rag import SearchMode

#: The ways of searching, as they are told.
MODES = (SearchMode.LEXICAL, SearchMode.VECTOR, SearchMode.FUSED)


@dataclass(frozen=True)
class Asked:
    """A question, and at which rank its first right passage came; None where none did."""

    question: Question
    ranks: dict[SearchMode, int | None]


@dataclass(frozen=True)
class Score:
    """Of all questions: the share with a right passage first, among five, and 1/rank on average."""

    at_1: float
    at_5: float
    mrr: float


async def ask(corpus: Corpus, questions: Sequence[Question]) -> list[Asked]:
    """Put all questions to the corpus."""
    asked = []
    for question in questions:
        found = await corpus.search(question.text)
        ranks: dict[SearchMode, int | None] = {}
        for mode in MODES:
            right = (
                rank
                for rank, place in enumerate(found[mode], start=1)
                if question.answered_by(place.document_id, corpus.passages[place])
            )
            ranks[mode] = next(right, None)
        asked.append(Asked(question, ranks))
    return asked


def score(asked: Sequence[Asked], mode: SearchMode, kind: Kind | None = None) -> Score:
    """The score of a way of searching, for one kind of questions or all."""
    ranks = [each.ranks[mode] for each in asked if kind in (None, each.question.kind)]
    reached = [rank for rank in ranks if rank is not None]
    return Score(
        sum(rank == 1 for rank in reached) / len(ranks),
        sum(rank <= 5 for rank in reached) / len(ranks),
        sum(1 / rank for rank in reached) / len(ranks),
    )
