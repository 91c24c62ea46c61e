"""The step `index_extract`: finds the terms of all sources, in parts where there are many."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from common import codec
from common.workflow.memory_first import INDEX_EXTRACT, MAX_TERMS
from worker.workflows.memory_first import texts
from worker.workflows.memory_first.analysis import Text, analyse
from worker.workflows.memory_first.findings import Findings, find
from worker.workflows.memory_first.texts import packed_json, unpacked_json
from worker.workflows.output import StepItem, StepOutput
from worker.workflows.splitting import SplitStep

if TYPE_CHECKING:
    from worker.workflows.context import StepContext

#: Up to so many sources are done at once; of more, each part does so many, or so many characters.
MOST_WHOLE: Final = 8
PART_SOURCES: Final = 8
PART_CHARS: Final = 400_000
#: Sources that are handed to a process together where the step is not split.
_TOGETHER_CHARS: Final = 200_000
#: Under this name the step leaves what `proposals` needs.
FINDINGS: Final = "findings"


class ExtractStep(SplitStep):
    """Analyses the sources one by one, wherever, and puts the results together in their order."""

    async def split(self, context: StepContext) -> Sequence[Any]:
        """The sources of each part, by id."""
        found = await texts.sources(context)
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
        """What the sources of one part say, packed."""
        wanted = frozenset(part)
        found = [source for source in await texts.sources(context) if source.id in wanted]
        results: list[str] = []
        waiting: list[Text] = []
        for done, source in enumerate(found, start=1):
            waiting.append(
                Text(
                    source.id, source.lang, source.media_type, await texts.text_of(context, source)
                )
            )
            if done == len(found) or sum(len(each.text) for each in waiting) >= _TOGETHER_CHARS:
                results.append(await context.compute(analysed, waiting))
                waiting = []
                await context.progress(done, len(found))
        return results

    async def join(self, context: StepContext, results: list[Any]) -> StepOutput:
        """The terms of all sources."""
        found = await texts.sources(context)
        most = int(context.options.get("max_terms", MAX_TERMS))
        parts = [packed for part in results for packed in part]
        languages = {source.id: source.lang for source in found}
        items, raw = await context.compute(joined, parts, languages, most)
        await context.put(FINDINGS, raw)
        summary = f"Found {len(items)} terms in {len(found)} sources"
        return StepOutput(summary, [StepItem(payload) for payload in items])


def analysed(sources: Sequence[Text]) -> str:
    """What some sources say, by id, packed."""
    return packed_json([[source.id, analyse(source)] for source in sources])


def joined(
    parts: Sequence[str], languages: dict[str, str], most: int
) -> tuple[list[dict[str, Any]], bytes]:
    """The payloads of the best terms, and what later steps need, packed."""
    analyses = [each for part in parts for each in unpacked_json(part)]
    findings = find([(source, languages[source], analysis) for source, analysis in analyses], most)
    payloads = [term.payload() for term in findings.terms[:most]]
    return payloads, zlib.compress(codec.dumps(findings.view()))


async def findings_of(context: StepContext) -> Findings:
    """What the step left."""
    raw = await context.get(INDEX_EXTRACT, FINDINGS)
    if raw is None:
        return Findings()
    return Findings.of(codec.loads(zlib.decompress(raw)))
