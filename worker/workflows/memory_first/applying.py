"""The step `apply`: what was approved goes into the ontology, and the sources into the documents.

All of it can be taken back. Each change is written down before it is made, together with what was
there before; an attempt that goes on after another has died finds what that one has done. What a
failed execution leaves is taken back: by itself, by whoever tells of its end, or by the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from common import crashpoints
from common.contracts.rag import MOST_NAMESPACES, MOST_TERMS, RagKeys
from common.contracts.scripts import Answer
from common.contracts.workflow import Fact, ItemStatus, StepField, StepStatus, WorkflowError
from common.crashpoints import CrashPoint
from common.workflow.effects import MOST_PER_CALL, Effects, EffectStore, token_of
from common.workflow.memory_first import APPLY, PROPOSALS
from common.workflow.records import Item
from common.workflow.types import Outcome, WorkflowAnswer
from worker.errors import AttemptLost, JobError, TransientError
from worker.rag.ingest import ID_DIGITS, REVISION_DIGITS
from worker.rag.library import Library
from worker.rag.reading import Reading
from worker.rag.store import Guard
from worker.services import House, Service
from worker.unless_canceled import Stopped
from worker.workflows.errors import StepCancelled, StepError, StepLost
from worker.workflows.memory_first import texts
from worker.workflows.memory_first.applied import Applied, Documents
from worker.workflows.memory_first.planning import Failure, Plan, plan
from worker.workflows.memory_first.texts import Source
from worker.workflows.output import StepOutput

if TYPE_CHECKING:
    from worker.workflows.context import StepContext

T = TypeVar("T")

#: How often changes are thought out again because somebody else was faster.
_TRIES: Final = 10
#: After these another attempt goes on where this one stopped; what it did is wanted then.
_TO_BE_CONTINUED: Final = (TransientError, AttemptLost)
_OVERTAKEN: Final = "others change the namespace all the time"


class _Sorted(NamedTuple):
    """Sources by what is to be done for them."""

    new: list[Source]
    #: Documents of others that are just these: revisions by id.
    known: dict[str, str]
    documents: Documents


class ApplyStep(Service):
    """Applies what was approved. Option `dry_run`: change nothing, say what would be."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def start(self, house: House) -> None:
        """See `Service`."""
        self._effects = EffectStore(house.redis, house.workflows)
        self._keys = house.workflows.keys

    async def __call__(self, context: StepContext) -> StepOutput:
        """Do all that can be done, or take back what was."""
        await self._effects.revert(context.job_id)
        if context.options.get("dry_run"):
            return await self._dry_run(context)
        try:
            return await self._apply(context)
        except (JobError, StepCancelled, StepLost) as error:
            if not isinstance(error, _TO_BE_CONTINUED):
                await self._effects.revert(context.job_id, context.running)
            raise

    async def _apply(self, context: StepContext) -> StepOutput:
        keys = self._library.keys(context.namespace, context.tenant)
        documents = await self._store_sources(context, keys)
        found = await self._change_terms(context, keys)
        made = await self._effects.made(context.running)
        applied, changed = Applied(found, documents), found.changed()
        token = token_of(context.execution_id) if made or changed else ""
        return StepOutput(
            applied.summary(len(made.terms)),
            applied.items(len(made.terms), token),
            errors=applied.errors(),
            changed=changed,
            undo_token=token,
        )

    async def _dry_run(self, context: StepContext) -> StepOutput:
        keys = self._library.keys(context.namespace, context.tenant)
        stored = await self._effects.terms(keys)
        found = plan(stored, Effects(), *await _asked(context))
        sources = await self._sorted(keys, await texts.sources(context), Effects())
        sources.documents.added += [_id_of(source) for source in sources.new]
        applied = Applied(found, sources.documents, dry_run=True)
        return StepOutput(
            applied.summary(len(found.changes)),
            applied.items(len(found.changes)),
            errors=applied.errors(),
        )

    # -- documents -------------------------------------------------------------------------

    async def _store_sources(self, context: StepContext, keys: RagKeys) -> Documents:
        sources = await texts.sources(context)
        for _ in range(_TRIES):
            made = await self._effects.made(context.running)
            found = await self._sorted(keys, sources, made)
            if await self._note(context, keys, found, made):
                break
        else:
            raise TransientError(_OVERTAKEN)
        for done, source in enumerate(found.new):
            await context.progress(done, len(found.new) + 1)
            await self._store_source(context, keys, source, found.documents)
        return found.documents

    async def _sorted(self, keys: RagKeys, sources: Sequence[Source], made: Effects) -> _Sorted:
        """The sources that are to be stored, and what became of the others."""
        records = await self._library.records(keys, [_id_of(source) for source in sources])
        there = {record.id: record for record in records}
        found = _Sorted([], {}, Documents())
        for source in sources:
            record = there.get(_id_of(source))
            if record is None:
                found.new.append(source)
            elif record.revision == made.documents.get(record.id):
                found.documents.added.append(record.id)  # by an attempt before this one
            elif record.sha256 == source.sha256:
                found.documents.known += 1
                found.known[record.id] = record.revision
            else:
                found.documents.failures.append(_taken(source))
        return found

    async def _note(
        self, context: StepContext, keys: RagKeys, found: _Sorted, made: Effects
    ) -> bool:
        """Write down what is about to be stored; False where what was known is gone meanwhile.

        What an attempt before this one was about to store, and another did, is struck out: it is
        not ours to take back.
        """
        noted = {_id_of(source): _revision(context, source) for source in found.new}
        others = made.documents.keys() - noted.keys() - set(found.documents.added)
        noted |= dict.fromkeys(others, "")
        for some in _portions(list(noted)):
            revisions = {document_id: noted[document_id] for document_id in some}
            _check(await self._effects.note(context.running, keys, revisions))
        for some in _portions(list(found.known)):
            revisions = {document_id: found.known[document_id] for document_id in some}
            outcome = await self._effects.claim(context.running, keys, revisions)
            if _is_overtaken(outcome):
                return False
            _check(outcome)
        return True

    async def _store_source(
        self, context: StepContext, keys: RagKeys, source: Source, documents: Documents
    ) -> None:
        """Store one, unless another was faster."""
        for _ in range(_TRIES):
            if await self._is_settled(context, keys, source, documents):
                return
        raise TransientError(_OVERTAKEN)

    async def _is_settled(
        self, context: StepContext, keys: RagKeys, source: Source, documents: Documents
    ) -> bool:
        """Try to store it; False where another was faster, and has taken it away again."""
        reading = Reading(await texts.text_of(context, source), source.title, source.media_type)
        guard, revision = self._guard(context), _revision(context, source)
        try:
            answer = await self._library.ingest.add_new(
                context.core, keys, reading, guard, revision
            )
        except Stopped:
            raise StepCancelled from None
        except _TO_BE_CONTINUED:
            raise
        except JobError as error:  # such as a namespace that is full; its kind says what
            raise StepError(error.kind, str(error)) from error
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_EFFECT)
        if answer is Answer.GONE:
            raise StepLost
        if answer is Answer.OK:
            documents.added.append(_id_of(source))
            return True
        there = await self._library.records(keys, [_id_of(source)])
        if not there:
            return False
        if there[0].sha256 != source.sha256:
            documents.failures.append(_taken(source))
        else:
            theirs = {_id_of(source): there[0].revision}
            outcome = await self._effects.claim(context.running, keys, theirs)
            if _is_overtaken(outcome):
                return False
            _check(outcome)
            documents.known += 1
        _check(await self._effects.note(context.running, keys, {_id_of(source): ""}))
        return True

    def _guard(self, context: StepContext) -> Guard:
        """Nothing is stored once the execution has ended, whoever ended it."""
        says = {
            f"{context.step}.{StepField.EXECUTION.value}": context.execution_id,
            f"{context.step}.{StepField.STATUS.value}": StepStatus.RUNNING.value,
        }
        return Guard(self._keys.steps(context.job_id), says)

    # -- terms -----------------------------------------------------------------------------

    async def _change_terms(self, context: StepContext, keys: RagKeys) -> Plan:
        for _ in range(_TRIES):
            context.check_cancelled()
            made = await self._effects.made(context.running)
            found = plan(await self._effects.terms(keys), made, *await _asked(context))
            for some in _portions([*found.changes, *found.claims]):
                outcome = await self._effects.change(context.running, keys, some)
                if _is_overtaken(outcome):
                    break
                _check(outcome)
            else:
                return found
        raise TransientError(_OVERTAKEN)


async def _asked(context: StepContext) -> tuple[list[Item], str, int]:
    """What was approved, where, and when: the same for all attempts of an execution."""
    items = await context.items(PROPOSALS)
    approved = [item for item in items if item.status is ItemStatus.APPROVED]
    return approved, context.job_id, context.step_record(APPLY).started_ms


def _id_of(source: Source) -> str:
    """The same as if somebody had sent the text as a document without a name."""
    return source.sha256[:ID_DIGITS]


def _revision(context: StepContext, source: Source) -> str:
    whole = f"{context.job_id} {context.execution_id} {source.sha256}"
    return hashlib.sha256(whole.encode()).hexdigest()[:REVISION_DIGITS]


def _taken(source: Source) -> Failure:
    return Failure(
        source.id,
        f"there is another document named {_id_of(source)}; delete it, or give it another name",
    )


def _portions(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    return (whole[at : at + MOST_PER_CALL] for at in range(0, len(whole), MOST_PER_CALL))


def _is_overtaken(outcome: Outcome) -> bool:
    """Whether somebody else has changed a term meanwhile: then it is thought out again."""
    code = outcome.facts.get(Fact.CODE.value)
    return outcome.answer is WorkflowAnswer.REFUSED and code == WorkflowError.VERSION_CONFLICT.value


def _check(outcome: Outcome) -> None:
    if outcome.answer is WorkflowAnswer.OK:
        return
    code = outcome.facts.get(Fact.CODE.value)
    if code == WorkflowError.NAMESPACE_FULL.value:
        raise StepError(
            code,
            f"the namespace would know more than {MOST_TERMS} terms; reject some proposals, undo "
            "what was applied before, or use another one",
        )
    if code == WorkflowError.TOO_MANY_NAMESPACES.value:
        raise StepError(
            code,
            f"there are {MOST_NAMESPACES} namespaces, which is all there may be; empty one",
        )
    raise StepLost
