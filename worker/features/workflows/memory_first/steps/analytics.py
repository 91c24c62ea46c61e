"""The step `analytics`: metrics of a job."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.workflow.statuses import ItemStatus, ProposalField, StepStatus
from sluice.common.features.workflows.memory_first import APPLY, DEFINITION, PROPOSALS
from sluice.common.features.workflows.records import Item
from sluice.common.text import plural
from sluice.worker.features.rag.index.ontology import MOST_NAME_WORDS, word_forms
from sluice.worker.features.rag.parsing.reader import has_markup
from sluice.worker.features.rag.service import RagService
from sluice.worker.features.rag.text.chunking import split_chunks
from sluice.worker.features.rag.text.languages import detect_language
from sluice.worker.features.rag.text.terms import tokenize
from sluice.worker.features.workflows.memory_first.sources import packed
from sluice.worker.features.workflows.memory_first.sources.packed import Source
from sluice.worker.features.workflows.memory_first.text.analysis import SourceText
from sluice.worker.features.workflows.output import StepItem, StepOutput

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext

#: Minimum length of a term to be searched for.
_SHORTEST: Final = 2


class Coverage(NamedTuple):
    """Numbers of sources and passages, in total and with at least one term."""

    sources: int = 0
    covered_sources: int = 0
    chunks: int = 0
    covered_chunks: int = 0

    def plus(self, other: Coverage) -> Coverage:
        return Coverage(*(mine + theirs for mine, theirs in zip(self, other)))


def measure_coverage(texts: Sequence[SourceText], names: Sequence[str]) -> Coverage:
    """Measure the coverage of sources by terms. Slow: run it in a child process."""
    known: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    whole = Coverage()
    for text in texts:
        language = detect_language(text.text)
        if language not in known:
            known[language] = _by_first(names, language)
        spans = split_chunks(text.text, marked=has_markup(text.media_type))
        covered = sum(
            _contains_term(text.text[span.start : span.end], known[language], language)
            for span in spans
        )
        whole = whole.plus(Coverage(1, 1 if covered else 0, len(spans), covered))
    return whole


def _by_first(names: Iterable[str], language: str) -> dict[str, list[tuple[str, ...]]]:
    """Forms of the names, by the form of their first word."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for name in names:
        forms = word_forms(name, language)
        if 0 < len(forms) <= MOST_NAME_WORDS and len(name) >= _SHORTEST:
            found.setdefault(forms[0], []).append(forms)
    return found


def _contains_term(passage: str, names: dict[str, list[tuple[str, ...]]], language: str) -> bool:
    words = [token.form(language) for token in tokenize(unicodedata.normalize("NFC", passage))]
    return any(
        tuple(words[at : at + len(name)]) == name
        for at, word in enumerate(words)
        for name in names.get(word, ())
    )


#: Characters of sources per process call.
_BATCH_CHARS: Final = 1_000_000
_ACCEPTED: Final = (ItemStatus.APPROVED, ItemStatus.APPLIED, ItemStatus.FAILED)


class AnalyticsStep:
    """Computes metrics; changes nothing."""

    def __init__(self, rag_service: RagService) -> None:
        self._rag_service = rag_service

    async def __call__(self, context: StepContext) -> StepOutput:
        """One item per metric: `{"metric", "value", …}`."""
        proposals = await context.items(PROPOSALS)
        covered = await self._coverage(context)
        metrics = [
            *_proposal_metrics(proposals),
            *_apply_metrics(await context.items(APPLY)),
            *_coverage_metrics(covered),
            *_step_metrics(context),
        ]
        return StepOutput(_summary(proposals, covered), [StepItem(each) for each in metrics])

    async def _coverage(self, context: StepContext) -> Coverage:
        entries = await self._rag_service.ontology(
            self._rag_service.keys(context.namespace, context.tenant)
        )
        names = [name for entry in entries for name in entry.names]
        sources = await packed.load_sources(context)
        found, done = Coverage(), 0
        for some in _batches(sources):
            texts: list[SourceText] = await packed.load_texts(context, some)
            found = found.plus(await context.compute(measure_coverage, texts, names))
            done += len(some)
            await context.progress(done, len(sources))
        return found


def _batches(sources: Sequence[Source]) -> Iterator[list[Source]]:
    batch: list[Source] = []
    for source in sources:
        batch.append(source)
        if sum(each.chars for each in batch) >= _BATCH_CHARS:
            yield batch
            batch = []
    if batch:
        yield batch


def _proposal_metrics(proposals: Sequence[Item]) -> Iterator[dict[str, Any]]:
    statuses = Counter(item.status.value for item in proposals)
    kinds = Counter(_kind(item) for item in proposals)
    yield _metric("proposals", len(proposals), by_status=_sorted(statuses), by_kind=_sorted(kinds))
    accepted = [item for item in proposals if item.status in _ACCEPTED]
    rejected = [item for item in proposals if item.status is ItemStatus.REJECTED]
    decided = len(accepted) + len(rejected)
    yield _metric(
        "acceptance_rate",
        _share(len(accepted), decided),
        accepted=len(accepted),
        rejected=len(rejected),
    )
    yield _metric("mean_confidence_accepted", _mean(accepted), count=len(accepted))
    yield _metric("mean_confidence_rejected", _mean(rejected), count=len(rejected))


def _apply_metrics(items: Sequence[Item]) -> Iterator[dict[str, Any]]:
    """The first item of `apply` has the totals."""
    about = codec.parse_payload(items[0].payload) if items else {}
    before, after = about.get("terms_before", 0), about.get("terms_after", 0)
    yield _metric("terms", after, before=before, after=after, changed=about.get("terms", 0))
    yield _metric("documents", about.get("documents", 0), known=about.get("documents_known", 0))


def _coverage_metrics(found: Coverage) -> Iterator[dict[str, Any]]:
    for of, covered, total in (
        ("sources", found.covered_sources, found.sources),
        ("chunks", found.covered_chunks, found.chunks),
    ):
        yield _metric(f"coverage_{of}", _share(covered, total), covered=covered, total=total)


def _step_metrics(context: StepContext) -> Iterator[dict[str, Any]]:
    records = [context.step_record(step.name) for step in DEFINITION.steps]
    for record in records:
        if record.status is StepStatus.COMPLETE and record.started_ms:
            seconds = max(0, record.updated_ms - record.started_ms) / 1000
            yield _metric("duration_s", seconds, step=record.name)
    retries = {record.name: record.attempt - 1 for record in records if record.attempt > 1}
    yield _metric("retries", sum(retries.values()), by_step=retries)


def _summary(proposals: Sequence[Item], covered: Coverage) -> str:
    accepted = sum(item.status in _ACCEPTED for item in proposals)
    return (
        f"{accepted} of {plural(len(proposals), 'proposal')} accepted; terms in "
        f"{covered.covered_sources} of {plural(covered.sources, 'source')}, "
        f"{covered.covered_chunks} of {plural(covered.chunks, 'passage')}"
    )


def _metric(name: str, value: float | None, **more: Any) -> dict[str, Any]:
    return {"metric": name, "value": value, **more}


def _kind(item: Item) -> str:
    return str(codec.parse_payload(item.payload).get(ProposalField.KIND))


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _mean(items: Sequence[Item]) -> float | None:
    if not items:
        return None
    return round(sum(item.confidence for item in items) / len(items), 4)
