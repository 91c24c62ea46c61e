"""Recall: the ranks of correct passages in the search results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.rag.corpus import Corpus
from bench.rag.questions import Kind, Question
from sluice.common.contracts.rag import SearchMode

#: Search modes in the order of the table.
MODES = (SearchMode.LEXICAL, SearchMode.VECTOR, SearchMode.FUSED)


@dataclass(frozen=True)
class Outcome:
    """A question and the rank of its first correct passage by mode; None if there is none."""

    question: Question
    ranks: dict[SearchMode, int | None]


@dataclass(frozen=True)
class Score:
    """Share of questions with a correct passage first and among the first five, and mean 1/rank."""

    at_1: float
    at_5: float
    mrr: float


async def ask(corpus: Corpus, questions: Sequence[Question]) -> list[Outcome]:
    """Searches for all questions."""
    outcomes = []
    for question in questions:
        found = await corpus.search(question.text)
        ranks: dict[SearchMode, int | None] = {}
        for mode in MODES:
            right = (
                rank
                for rank, passage in enumerate(found[mode], start=1)
                if question.answered_by(passage.document_id, corpus.passages[passage])
            )
            ranks[mode] = next(right, None)
        outcomes.append(Outcome(question, ranks))
    return outcomes


def score(outcomes: Sequence[Outcome], mode: SearchMode, kind: Kind | None = None) -> Score:
    """Score of a search mode, for one kind of question or all."""
    ranks = [each.ranks[mode] for each in outcomes if kind in (None, each.question.kind)]
    found_ranks = [rank for rank in ranks if rank is not None]
    return Score(
        sum(rank == 1 for rank in found_ranks) / len(ranks),
        sum(rank <= 5 for rank in found_ranks) / len(ranks),
        sum(1 / rank for rank in found_ranks) / len(ranks),
    )
