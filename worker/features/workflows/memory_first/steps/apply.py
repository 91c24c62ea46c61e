"""The step `apply`: writes approved proposals to the ontology and sources to the documents.

Everything can be undone. Each change is recorded before it is made, together with the previous
state; an attempt that continues after a crash finds the changes of the earlier one. Changes of a
failed execution are reverted: by itself, by the worker that reports its end, or by the next
execution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sluice.common.contracts.queue import Answer
from sluice.common.contracts.rag import MOST_NAMESPACES, MOST_TERMS, RagKeys
from sluice.common.contracts.workflow.fields import StepField
from sluice.common.contracts.workflow.operations import WorkflowFact
from sluice.common.contracts.workflow.statuses import (
    MOST_ITEMS,
    ErrorField,
    ItemStatus,
    ProposalKind,
    StepStatus,
    WorkflowError,
)
from sluice.common.features.workflows.effects import (
    MOST_PER_CALL,
    Effects,
    EffectStore,
    undo_token_for,
)
from sluice.common.features.workflows.memory_first import APPLY, PROPOSALS
from sluice.common.features.workflows.records import Item
from sluice.common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.text import plural
from sluice.worker.errors import AttemptLost, JobError, TransientError
from sluice.worker.execution.concurrency import JobCanceled
from sluice.worker.features.rag.ingest import ID_DIGITS, REVISION_DIGITS
from sluice.worker.features.rag.parsing.reader import ParsedDocument
from sluice.worker.features.rag.service import RagService
from sluice.worker.features.rag.store import WriteGuard
from sluice.worker.features.workflows.errors import StepCancelled, StepError, StepLost, error_entry
from sluice.worker.features.workflows.memory_first.ontology_plan import (
    ApplyFailure,
    OntologyPlan,
    plan_ontology,
)
from sluice.worker.features.workflows.memory_first.sources import packed
from sluice.worker.features.workflows.memory_first.sources.packed import Source
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.registry import Service, WorkerServices

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext

#: Most failures listed individually, and most document ids.
_MOST_ERRORS: Final = 100
_MOST_IDS: Final = 200


@dataclass
class DocumentResults:
    """Outcome for the sources."""

    #: Ids of the stored documents.
    added: list[str] = field(default_factory=list)
    #: Number of documents that existed already.
    known: int = 0
    failures: list[ApplyFailure] = field(default_factory=list)


@dataclass(frozen=True)
class ApplyResult:
    """Changes made, or planned in a dry run."""

    plan: OntologyPlan
    documents: DocumentResults
    dry_run: bool = False

    @property
    def applied(self) -> int:
        return len(self.plan.proposals) - len(self.plan.failures)

    @property
    def failed(self) -> int:
        """Proposals and sources that failed."""
        return len(self.plan.failures) + len(self.documents.failures)

    def summary(self, terms: int) -> str:
        """One sentence; `terms` is the number of changed terms."""
        begin = "Would apply" if self.dry_run else "Applied"
        failed = f"; {self.failed} failed" if self.failed else ""
        return (
            f"{begin} {plural(self.applied, 'proposal')}: {plural(terms, 'term')} changed, "
            f"{plural(len(self.documents.added), 'document')} added{failed}"
        )

    def items(self, terms: int, token: str = "") -> list[StepItem]:
        """First the totals, then each file to be moved."""
        about: dict[str, Any] = {
            "applied": self.applied,
            "failed": self.failed,
            "undo_token": token or None,
            "dry_run": self.dry_run,
            "terms": terms,
            "terms_before": self.plan.terms_before,
            "terms_after": self.plan.terms_after,
            "documents": len(self.documents.added),
            "documents_known": self.documents.known,
            "document_ids": self.documents.added[:_MOST_IDS],
            "moves": len(self.plan.moves),
        }
        moves = [
            StepItem(
                {
                    "kind": ProposalKind.FILE_MOVE.value,
                    "proposal": move.proposal,
                    "from": move.path,
                    "to": move.to,
                }
            )
            for move in self.plan.moves
        ]
        return [StepItem(about), *moves][:MOST_ITEMS]

    def errors(self) -> list[dict[str, str]]:
        """Failures with their reasons."""
        return [
            *(_failure_entry(WorkflowError.STEP_FAILED, each) for each in self.plan.failures),
            *(
                _failure_entry(WorkflowError.SOURCE_FAILED, each)
                for each in self.documents.failures
            ),
        ][:_MOST_ERRORS]


def _failure_entry(code: WorkflowError, failure: ApplyFailure) -> dict[str, str]:
    return {**error_entry(code.value, failure.message), ErrorField.SOURCE: failure.name}


T = TypeVar("T")

#: How often changes are planned again after a conflict with another job.
_TRIES: Final = 10
#: After these errors another attempt continues, so the changes are kept.
_RESUMABLE_ERRORS: Final = (TransientError, AttemptLost)
_CONFLICT_MESSAGE: Final = "the namespace is being changed by other jobs"


class _SourceGroups(NamedTuple):
    """Sources by the action they need."""

    new: list[Source]
    #: Documents of other jobs with the same content: revisions by id.
    known: dict[str, str]
    documents: DocumentResults


class ApplyStep(Service):
    """Applies approved proposals. With option `dry_run`, only reports what would change."""

    def __init__(self, rag_service: RagService) -> None:
        self._rag_service = rag_service

    async def start(self, services: WorkerServices) -> None:
        self._effects = EffectStore(services.redis, services.workflows)
        self._keys = services.workflows.keys

    async def __call__(self, context: StepContext) -> StepOutput:
        """Apply everything, or revert the changes after a failure."""
        await self._effects.revert(context.job_id)
        if context.options.get("dry_run"):
            return await self._dry_run(context)
        try:
            return await self._apply(context)
        except (JobError, StepCancelled, StepLost) as error:
            if not isinstance(error, _RESUMABLE_ERRORS):
                await self._effects.revert(context.job_id, context.running)
            raise

    async def _apply(self, context: StepContext) -> StepOutput:
        keys = self._rag_service.keys(context.namespace, context.tenant)
        documents = await self._store_sources(context, keys)
        found = await self._change_terms(context, keys)
        effects = await self._effects.for_execution(context.running)
        applied, changed = ApplyResult(found, documents), found.changed()
        token = undo_token_for(context.execution_id) if effects or changed else ""
        return StepOutput(
            applied.summary(len(effects.terms)),
            applied.items(len(effects.terms), token),
            errors=applied.errors(),
            changed=changed,
            undo_token=token,
        )

    async def _dry_run(self, context: StepContext) -> StepOutput:
        keys = self._rag_service.keys(context.namespace, context.tenant)
        stored = await self._effects.terms(keys)
        found = plan_ontology(stored, Effects(), *await _approved_proposals(context))
        sources = await self._group_sources(keys, await packed.load_sources(context), Effects())
        sources.documents.added += [_document_id(source) for source in sources.new]
        applied = ApplyResult(found, sources.documents, dry_run=True)
        return StepOutput(
            applied.summary(len(found.changes)),
            applied.items(len(found.changes)),
            errors=applied.errors(),
        )

    # -- documents -------------------------------------------------------------------------

    async def _store_sources(self, context: StepContext, keys: RagKeys) -> DocumentResults:
        sources = await packed.load_sources(context)
        for _ in range(_TRIES):
            effects = await self._effects.for_execution(context.running)
            found = await self._group_sources(keys, sources, effects)
            if await self._record_intent(context, keys, found, effects):
                break
        else:
            raise TransientError(_CONFLICT_MESSAGE)
        for done, source in enumerate(found.new):
            await context.progress(done, len(found.new) + 1)
            await self._store_source(context, keys, source, found.documents)
        return found.documents

    async def _group_sources(
        self, keys: RagKeys, sources: Sequence[Source], effects: Effects
    ) -> _SourceGroups:
        """The sources to store, and the outcome for the others."""
        records = await self._rag_service.records(
            keys, [_document_id(source) for source in sources]
        )
        existing = {record.id: record for record in records}
        found = _SourceGroups([], {}, DocumentResults())
        for source in sources:
            record = existing.get(_document_id(source))
            if record is None:
                found.new.append(source)
            elif record.revision == effects.documents.get(record.id):
                found.documents.added.append(record.id)  # by an earlier attempt
            elif record.sha256 == source.sha256:
                found.documents.known += 1
                found.known[record.id] = record.revision
            else:
                found.documents.failures.append(_id_conflict(source))
        return found

    async def _record_intent(
        self, context: StepContext, keys: RagKeys, found: _SourceGroups, effects: Effects
    ) -> bool:
        """Record the documents about to be stored; returns False if a known document is gone.

        A document that an earlier attempt intended to store, and another job has stored, is removed
        from the record, so that it is not reverted.
        """
        intended = {_document_id(source): _revision(context, source) for source in found.new}
        others = effects.documents.keys() - intended.keys() - set(found.documents.added)
        intended |= dict.fromkeys(others, "")
        for some in _batches(list(intended)):
            revisions = {document_id: intended[document_id] for document_id in some}
            _check(await self._effects.record_documents(context.running, keys, revisions))
        for some in _batches(list(found.known)):
            revisions = {document_id: found.known[document_id] for document_id in some}
            outcome = await self._effects.claim_documents(context.running, keys, revisions)
            if _is_conflict(outcome):
                return False
            _check(outcome)
        return True

    async def _store_source(
        self, context: StepContext, keys: RagKeys, source: Source, documents: DocumentResults
    ) -> None:
        """Store a source, unless another job is faster.

        Raises TransientError after too many conflicts.
        """
        for _ in range(_TRIES):
            if await self._try_store(context, keys, source, documents):
                return
        raise TransientError(_CONFLICT_MESSAGE)

    async def _try_store(
        self, context: StepContext, keys: RagKeys, source: Source, documents: DocumentResults
    ) -> bool:
        """Try to store a source; returns False if another job stored it and removed it again."""
        parsed = ParsedDocument(
            await packed.load_text(context, source), source.title, source.media_type
        )
        guard, revision = self._guard(context), _revision(context, source)
        try:
            answer = await self._rag_service.ingest.add_new(
                context.core, keys, parsed, guard, revision
            )
        except JobCanceled:
            raise StepCancelled from None
        except _RESUMABLE_ERRORS:
            raise
        except JobError as error:  # such as a full namespace
            raise StepError(error.kind, str(error)) from error
        crashpoints.reach(CrashPoint.AFTER_EFFECT)
        if answer is Answer.GONE:
            raise StepLost
        if answer is Answer.OK:
            documents.added.append(_document_id(source))
            return True
        existing = await self._rag_service.records(keys, [_document_id(source)])
        if not existing:
            return False
        if existing[0].sha256 != source.sha256:
            documents.failures.append(_id_conflict(source))
        else:
            revisions = {_document_id(source): existing[0].revision}
            outcome = await self._effects.claim_documents(context.running, keys, revisions)
            if _is_conflict(outcome):
                return False
            _check(outcome)
            documents.known += 1
        _check(
            await self._effects.record_documents(context.running, keys, {_document_id(source): ""})
        )
        return True

    def _guard(self, context: StepContext) -> WriteGuard:
        """Refuses writes after the execution has ended."""
        expected = {
            f"{context.step}.{StepField.EXECUTION}": context.execution_id,
            f"{context.step}.{StepField.STATUS}": StepStatus.RUNNING.value,
        }
        return WriteGuard(self._keys.steps(context.job_id), expected)

    # -- terms -----------------------------------------------------------------------------

    async def _change_terms(self, context: StepContext, keys: RagKeys) -> OntologyPlan:
        for _ in range(_TRIES):
            context.check_cancelled()
            effects = await self._effects.for_execution(context.running)
            found = plan_ontology(
                await self._effects.terms(keys), effects, *await _approved_proposals(context)
            )
            for some in _batches([*found.changes, *found.claims]):
                outcome = await self._effects.change_terms(context.running, keys, some)
                if _is_conflict(outcome):
                    break
                _check(outcome)
            else:
                return found
        raise TransientError(_CONFLICT_MESSAGE)


async def _approved_proposals(context: StepContext) -> tuple[list[Item], str, int]:
    """Approved proposals, job id and start time: the same for all attempts of an execution."""
    items = await context.items(PROPOSALS)
    approved = [item for item in items if item.status is ItemStatus.APPROVED]
    return approved, context.job_id, context.step_record(APPLY).started_ms


def _document_id(source: Source) -> str:
    """The id that the same text gets as a document without an id."""
    return source.sha256[:ID_DIGITS]


def _revision(context: StepContext, source: Source) -> str:
    whole = f"{context.job_id} {context.execution_id} {source.sha256}"
    return hashlib.sha256(whole.encode()).hexdigest()[:REVISION_DIGITS]


def _id_conflict(source: Source) -> ApplyFailure:
    return ApplyFailure(
        source.id,
        f"another document has the id {_document_id(source)}; delete it, or give it another id",
    )


def _batches(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    return (whole[at : at + MOST_PER_CALL] for at in range(0, len(whole), MOST_PER_CALL))


def _is_conflict(outcome: WorkflowOutcome) -> bool:
    """True if another job has changed the data; the changes are then planned again."""
    code = outcome.facts.get(WorkflowFact.CODE)
    return outcome.answer is WorkflowAnswer.REFUSED and code == WorkflowError.VERSION_CONFLICT.value


def _check(outcome: WorkflowOutcome) -> None:
    if outcome.answer is WorkflowAnswer.OK:
        return
    code = outcome.facts.get(WorkflowFact.CODE)
    if code == WorkflowError.NAMESPACE_FULL.value:
        raise StepError(
            code,
            f"the namespace would have more than {MOST_TERMS} terms; reject some proposals, undo "
            "earlier changes, or use another namespace",
        )
    if code == WorkflowError.TOO_MANY_NAMESPACES.value:
        raise StepError(
            code,
            f"the limit of {MOST_NAMESPACES} namespaces is reached; delete all documents of one",
        )
    raise StepLost
