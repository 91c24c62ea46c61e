"""The step `analytics`: what came of a job, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from common import codec
from common.contracts.workflow import ItemStatus, ProposalField, StepStatus
from common.workflow.memory_first import APPLY, DEFINITION, PROPOSALS
from common.workflow.records import Item
from worker.rag.library import Library
from worker.workflows.memory_first import texts
from worker.workflows.memory_first.analysis import Text
from worker.workflows.memory_first.coverage import Coverage, coverage
from worker.workflows.memory_first.texts import Source
from worker.workflows.output import StepItem, StepOutput

if TYPE_CHECKING:
    from worker.workflows.context import StepContext

#: Characters of sources that one process looks at together.
_TOGETHER_CHARS: Final = 1_000_000
_ACCEPTED: Final = (ItemStatus.APPROVED, ItemStatus.APPLIED, ItemStatus.FAILED)


class AnalyticsStep:
    """Counts. It changes nothing."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def __call__(self, context: StepContext) -> StepOutput:
        """One metric an item: `{"metric", "value", …}`."""
        proposals = await context.items(PROPOSALS)
        covered = await self._coverage(context)
        metrics = [
            *_of_proposals(proposals),
            *_of_applying(await context.items(APPLY)),
            *_of_coverage(covered),
            *_of_steps(context),
        ]
        return StepOutput(_summary(proposals, covered), [StepItem(each) for each in metrics])

    async def _coverage(self, context: StepContext) -> Coverage:
        entries = await self._library.ontology(
            self._library.keys(context.namespace, context.tenant)
        )
        names = [name for entry in entries for name in entry.names]
        sources = await texts.sources(context)
        found, done = Coverage(), 0
        for some in _batches(sources):
            wanted: list[Text] = await texts.texts(context, some)
            found = found.plus(await context.compute(coverage, wanted, names))
            done += len(some)
            await context.progress(done, len(sources))
        return found


def _batches(sources: Sequence[Source]) -> Iterator[list[Source]]:
    batch: list[Source] = []
    for source in sources:
        batch.append(source)
        if sum(each.chars for each in batch) >= _TOGETHER_CHARS:
            yield batch
            batch = []
    if batch:
        yield batch


def _of_proposals(proposals: Sequence[Item]) -> Iterator[dict[str, Any]]:
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


def _of_applying(items: Sequence[Item]) -> Iterator[dict[str, Any]]:
    """Its first item tells of all that was applied."""
    about = codec.payload_object(items[0].payload) if items else {}
    before, after = about.get("terms_before", 0), about.get("terms_after", 0)
    yield _metric("terms", after, before=before, after=after, changed=about.get("terms", 0))
    yield _metric("documents", about.get("documents", 0), known=about.get("documents_known", 0))


def _of_coverage(found: Coverage) -> Iterator[dict[str, Any]]:
    for of, covered, total in (
        ("sources", found.covered_sources, found.sources),
        ("chunks", found.covered_chunks, found.chunks),
    ):
        yield _metric(f"coverage_{of}", _share(covered, total), covered=covered, total=total)


def _of_steps(context: StepContext) -> Iterator[dict[str, Any]]:
    records = [context.step_record(step.name) for step in DEFINITION.steps]
    for record in records:
        if record.status is StepStatus.COMPLETE and record.started_ms:
            seconds = max(0, record.updated_ms - record.started_ms) / 1000
            yield _metric("duration_s", seconds, step=record.name)
    again = {record.name: record.attempt - 1 for record in records if record.attempt > 1}
    yield _metric("retries", sum(again.values()), by_step=again)


def _summary(proposals: Sequence[Item], covered: Coverage) -> str:
    accepted = sum(item.status in _ACCEPTED for item in proposals)
    return (
        f"{accepted} of {len(proposals)} proposals accepted; terms in {covered.covered_sources} of "
        f"{covered.sources} sources, {covered.covered_chunks} of {covered.chunks} passages"
    )


def _metric(name: str, value: float | None, **more: Any) -> dict[str, Any]:
    return {"metric": name, "value": value, **more}


def _kind(item: Item) -> str:
    return str(codec.payload_object(item.payload).get(ProposalField.KIND.value))


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _mean(items: Sequence[Item]) -> float | None:
    if not items:
        return None
    return round(sum(item.confidence for item in items) / len(items), 4)
