"""The step `index_extract`: extracts terms from all sources, in parts if there are many."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sluice.common import codec
from sluice.common.features.workflows.memory_first import INDEX_EXTRACT, MAX_TERMS
from sluice.common.text import plural
from sluice.worker.features.workflows.memory_first.sources import packed as texts
from sluice.worker.features.workflows.memory_first.sources.packed import pack_json, unpack_json
from sluice.worker.features.workflows.memory_first.terms.candidates import (
    Candidate,
    find_candidates,
)
from sluice.worker.features.workflows.memory_first.terms.terms import (
    KEYPHRASE,
    CorpusStats,
    Occurrence,
    Term,
    Variant,
)
from sluice.worker.features.workflows.memory_first.text import entities
from sluice.worker.features.workflows.memory_first.text.analysis import SourceText, analyse
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.features.workflows.split_steps import SplitStep

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext

#: Minimum number of terms considered for proposals, regardless of `max_terms`.
_LEAST_TERMS: Final = 500
#: Terms listed as topics of a source.
_ABOUT: Final = 5
_NAMING: Final = (KEYPHRASE, entities.NAME, entities.ACRONYM)


@dataclass
class ExtractionResult:
    """Terms, candidates for proposals, and topics of all sources."""

    terms: list[Term] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    #: By source: names of its topics, best first.
    about: dict[str, list[str]] = field(default_factory=dict)
    sources: int = 0

    def view(self) -> dict[str, Any]:
        return {
            "terms": [_term_view(term) for term in self.terms],
            "candidates": [candidate.view() for candidate in self.candidates],
            "about": self.about,
            "sources": self.sources,
        }

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> ExtractionResult:
        return cls(
            [_term(each) for each in stored["terms"]],
            [Candidate.of(each) for each in stored["candidates"]],
            dict(stored["about"]),
            int(stored["sources"]),
        )


def extract_terms(
    analyses: Sequence[tuple[str, str, Mapping[str, Any]]], most: int
) -> ExtractionResult:
    """Combine the analyses of all sources, given as (id, language, analysis) in order."""
    totals = CorpusStats()
    for source, language, analysis in analyses:
        totals.add(source, language, analysis)
    terms = totals.terms(max(most, _LEAST_TERMS))
    found = find_candidates(totals, terms)
    about = {source: _about(analysis, terms, len(analyses)) for source, _, analysis in analyses}
    return ExtractionResult(terms, found, about, len(analyses))


def _about(analysis: Mapping[str, Any], terms: Sequence[Term], count: int) -> list[str]:
    """The terms that are more frequent in a source than in others."""
    worth: dict[str, float] = {}
    for term in terms:
        if term.kind not in _NAMING:
            continue
        freq = sum(
            found[variant.name][0]
            for variant in term.variants
            for found in (analysis["words"], analysis["phrases"])
            if variant.name in found
        )
        if freq:
            rare = math.log(1 + count / term.df)
            worth[term.term] = term.score * (1 + math.log(freq)) * rare
    return sorted(worth, key=lambda name: (-worth[name], name))[:_ABOUT]


def _term_view(term: Term) -> list[Any]:
    return [
        term.term,
        term.kind,
        term.freq,
        term.df,
        term.score,
        [list(occurrence) for occurrence in term.evidence],
        [variant.view() for variant in term.variants],
        term.language,
    ]


def _term(stored: Sequence[Any]) -> Term:
    term, kind, freq, df, score, evidence, variants, language = stored
    return Term(
        term,
        kind,
        freq,
        df,
        score,
        [Occurrence(*each) for each in evidence],
        [Variant(*each) for each in variants],
        language,
    )


#: The step is split above MOST_WHOLE sources; a part has at most this many sources or characters.
MOST_WHOLE: Final = 8
PART_SOURCES: Final = 8
PART_CHARS: Final = 400_000
#: Characters of sources per process call.
_BATCH_CHARS: Final = 200_000
#: Name under which the step stores the data for `proposals`.
EXTRACTION_NAME: Final = "findings"


class ExtractStep(SplitStep):
    """Analyses the sources one by one, in any worker, and combines the results in order."""

    async def split(self, context: StepContext) -> Sequence[Any]:
        """The source ids of each part."""
        found = await texts.load_sources(context)
        if len(found) <= MOST_WHOLE:
            return [[source.id for source in found]]
        parts: list[list[str]] = []
        chars = PART_CHARS
        for source in found:
            if chars + source.chars > PART_CHARS or len(parts[-1]) >= PART_SOURCES:
                parts.append([])
                chars = 0
            parts[-1].append(source.id)
            chars += source.chars
        return parts

    async def run_part(self, context: StepContext, part: Any) -> Any:
        """Compressed analyses of the sources of one part."""
        ids = frozenset(part)
        found = [source for source in await texts.load_sources(context) if source.id in ids]
        results: list[str] = []
        waiting: list[SourceText] = []
        for done, source in enumerate(found, start=1):
            waiting.append(
                SourceText(
                    source.id,
                    source.lang,
                    source.media_type,
                    await texts.load_text(context, source),
                )
            )
            if done == len(found) or sum(len(each.text) for each in waiting) >= _BATCH_CHARS:
                results.append(await context.compute(analyse_packed, waiting))
                waiting = []
                await context.progress(done, len(found))
        return results

    async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
        found = await texts.load_sources(context)
        most = int(context.options.get("max_terms", MAX_TERMS))
        parts = [packed for part in results for packed in part]
        languages = {source.id: source.lang for source in found}
        items, raw = await context.compute(join_parts, parts, languages, most)
        await context.put(EXTRACTION_NAME, raw)
        summary = f"Found {plural(len(items), 'term')} in {plural(len(found), 'source')}"
        return StepOutput(summary, [StepItem(payload) for payload in items])


def analyse_packed(sources: Sequence[SourceText]) -> str:
    """Compressed analyses of some sources, with their ids."""
    return pack_json([[source.id, analyse(source)] for source in sources])


def join_parts(
    parts: Sequence[str], languages: dict[str, str], most: int
) -> tuple[list[dict[str, Any]], bytes]:
    """Payloads of the best terms, and compressed data for later steps."""
    analyses = [each for part in parts for each in unpack_json(part)]
    findings = extract_terms(
        [(source, languages[source], analysis) for source, analysis in analyses], most
    )
    payloads = [term.payload() for term in findings.terms[:most]]
    return payloads, zlib.compress(codec.dumps(findings.view()))


async def load_extraction(context: StepContext) -> ExtractionResult:
    raw = await context.get(INDEX_EXTRACT, EXTRACTION_NAME)
    if raw is None:
        return ExtractionResult()
    return ExtractionResult.of(codec.loads(zlib.decompress(raw)))
