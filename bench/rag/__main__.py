"""`python -m bench.rag`: recall of the three ways to search, over our own documents."""

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
from bench.rag.recall import MODES, Asked, ask, score
from bench.report import Table, as_markdown, as_text
from common.contracts.rag import SearchMode
from common.settings.models_dir import EMBED_DIRECTORY, models_dir
from worker.features.embedding.factory import find_model_problem
from worker.features.embedding.local import LocalEmbedder

PAGE: Final = ROOT / "docs" / "rag.md"
#: Of the page's lines.
WIDTH: Final = 100
BEGIN, END = "<!-- recall: begin -->", "<!-- recall: end -->"


def main() -> int:
    """Measure, print, write what was asked for; returns the exit code."""
    options = _options()
    folder = models_dir() / EMBED_DIRECTORY
    trouble = find_model_problem(folder)
    if trouble:
        print(f"bench.rag: {trouble}", file=sys.stderr)
        return 1
    corpus, asked = asyncio.run(_measure(folder))
    print(as_text(table(asked)))
    if options.misses:
        print("\n" + as_text(misses(asked)))
    if options.write_docs:
        write(PAGE, page(corpus, asked))
        print(f"wrote {PAGE.parent.name}/{PAGE.name}")
    return 0


async def _measure(folder: Path) -> tuple[Corpus, list[Asked]]:
    embedder = LocalEmbedder(folder)
    try:
        corpus = await build(embedder)
        return corpus, await ask(corpus, questions.load())
    finally:
        await embedder.close()


def table(asked: Sequence[Asked]) -> Table:
    """One row a way of searching; each number for all questions and for both kinds."""
    rows: Table = [
        ("found", "recall@1", "recall@5", "MRR", "recall@5 in its words", "recall@5 in other words")
    ]
    for mode in MODES:
        every = score(asked, mode)
        kinds = [score(asked, mode, kind).at_5 for kind in (Kind.WORDS, Kind.MEANING)]
        numbers = (every.at_1, every.at_5, every.mrr, *kinds)
        rows.append((_NAMES[mode], *(f"{number:.2f}" for number in numbers)))
    return rows


_NAMES: Final = {
    SearchMode.LEXICAL: "by words",
    SearchMode.VECTOR: "by vectors",
    SearchMode.FUSED: "fused",
}


def misses(asked: Sequence[Asked]) -> Table:
    """Questions whose answer is not first when fused, and at which rank it came."""
    rows: Table = [("question", *(_NAMES[mode] for mode in MODES))]
    for each in asked:
        if each.ranks[SearchMode.FUSED] != 1:
            ranks = (each.ranks[mode] for mode in MODES)
            rows.append(
                (each.question.text, *("-" if rank is None else str(rank) for rank in ranks))
            )
    return rows


def page(corpus: Corpus, asked: Sequence[Asked]) -> str:
    """The part of the page between the marks."""
    named = sum(each.question.kind is Kind.WORDS for each in asked)
    words = (
        f"Measured on {len(documents())} documents of this project ({corpus.characters:,} "
        f"characters, {len(corpus.passages)} chunks) with {len(asked)} questions, each with the "
        f"words that a right passage holds (`bench/rag/questions.json`): {named} in the documents' "
        f"own words, {len(asked) - named} in others. The vectors are those of the offline "
        f"{corpus.embedder.name}. Repeat it with `python -m bench.rag`; `--misses` lists what was "
        "not found first."
    )
    return f"{textwrap.fill(words, WIDTH, break_on_hyphens=False)}\n\n{as_markdown(table(asked))}\n"


def write(path: Path, content: str) -> None:
    """Put `content` between the marks of a page."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"bench.rag: {path} has no {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{content}{END}{after}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rag", description=__doc__)
    parser.add_argument("--misses", action="store_true", help="list what was not found first")
    parser.add_argument("--write-docs", action="store_true", help="write the table to docs/rag.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
