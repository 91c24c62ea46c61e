"""`python -m bench.rag`: recall of the three search modes on this project's documentation."""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.rag import questions
from bench.rag.corpus import ROOT, Corpus, build, documents
from bench.rag.questions import Kind
from bench.rag.recall import MODES, Outcome, ask, score
from bench.report import Table, as_markdown, as_text
from sluice.common.contracts.rag import SearchMode
from sluice.common.settings.models_dir import EMBED_DIRECTORY, models_dir
from sluice.worker.features.embedding.factory import find_model_problem
from sluice.worker.features.embedding.local import LocalEmbedder

PAGE: Final = ROOT / "docs" / "rag.md"
#: Line width of the page.
WIDTH: Final = 100
BEGIN, END = "<!-- recall: begin -->", "<!-- recall: end -->"


def main() -> int:
    options = _options()
    folder = models_dir() / EMBED_DIRECTORY
    problem = find_model_problem(folder)
    if problem:
        print(f"bench.rag: {problem}", file=sys.stderr)
        return 1
    corpus, outcomes = asyncio.run(_measure(folder))
    print(as_text(table(outcomes)))
    if options.misses:
        print("\n" + as_text(misses(outcomes)))
    if options.write_docs:
        write(PAGE, page(corpus, outcomes))
        print(f"wrote {PAGE.parent.name}/{PAGE.name}")
    return 0


async def _measure(folder: Path) -> tuple[Corpus, list[Outcome]]:
    embedder = LocalEmbedder(folder)
    try:
        corpus = await build(embedder)
        return corpus, await ask(corpus, questions.load())
    finally:
        await embedder.close()


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row per search mode; each number for all questions and for both kinds."""
    rows: Table = [
        ("found", "recall@1", "recall@5", "MRR", "recall@5 in its words", "recall@5 in other words")
    ]
    for mode in MODES:
        every = score(outcomes, mode)
        kinds = [score(outcomes, mode, kind).at_5 for kind in (Kind.WORDS, Kind.MEANING)]
        numbers = (every.at_1, every.at_5, every.mrr, *kinds)
        rows.append((_NAMES[mode], *(f"{number:.2f}" for number in numbers)))
    return rows


_NAMES: Final = {
    SearchMode.LEXICAL: "by words",
    SearchMode.VECTOR: "by vectors",
    SearchMode.FUSED: "fused",
}


def misses(outcomes: Sequence[Outcome]) -> Table:
    """Questions whose answer is not the first fused result, with the ranks of the answer."""
    rows: Table = [("question", *(_NAMES[mode] for mode in MODES))]
    for each in outcomes:
        if each.ranks[SearchMode.FUSED] != 1:
            ranks = (each.ranks[mode] for mode in MODES)
            rows.append(
                (each.question.text, *("-" if rank is None else str(rank) for rank in ranks))
            )
    return rows


def page(corpus: Corpus, outcomes: Sequence[Outcome]) -> str:
    """The part of the page between the markers."""
    in_own_words = sum(each.question.kind is Kind.WORDS for each in outcomes)
    text = (
        f"Measured on {len(documents())} documents of this project ({corpus.characters:,} "
        f"characters, {len(corpus.passages)} chunks) with {len(outcomes)} questions, each with a "
        f"phrase of the expected passage (`bench/rag/questions.json`): {in_own_words} in the words "
        f"of the documents, {len(outcomes) - in_own_words} in other words. The vectors are from "
        f"the offline model {corpus.embedder.name}. Repeat it with `python -m bench.rag`; "
        "`--misses` lists questions whose answer is not ranked first."
    )
    return (
        f"{textwrap.fill(text, WIDTH, break_on_hyphens=False)}\n\n{as_markdown(table(outcomes))}\n"
    )


def write(path: Path, content: str) -> None:
    """Replaces the text between the markers of a page."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"bench.rag: {path} has no {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{content}{END}{after}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rag", description=__doc__)
    parser.add_argument(
        "--misses", action="store_true", help="list questions whose answer is not ranked first"
    )
    parser.add_argument("--write-docs", action="store_true", help="write the table to docs/rag.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
