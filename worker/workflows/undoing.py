"""The internal tool `workflow.undo`: takes back what reached beyond the workflow."""

from __future__ import annotations

from typing import Any

from common.contracts.rag import RagKeys
from common.contracts.workflow import UndoOutcome
from common.rag_store import DocumentRecord
from common.workflow.effects import EffectStore
from common.workflow.store import WorkflowStore
from common.workflow.types import WorkflowAnswer
from worker.context import JobContext
from worker.rag.library import Library
from worker.workflows.arguments import UndoArguments


class Undoing:
    """Undoes operations with effects. Done again, it finds that it is done."""

    def __init__(self, store: WorkflowStore, effects: EffectStore, library: Library | None) -> None:
        self._store = store
        self._effects = effects
        self._library = library

    async def undo(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        """What came of it, for the gateway, which waits: a refusal is no failure of the job."""
        wanted = UndoArguments.of(args)
        documents = await self._documents(context, wanted)
        outcome = await self._store.undo_beyond(wanted.job_id, wanted.token)
        if documents and outcome.answer is WorkflowAnswer.OK and self._library is not None:
            keys, before = documents
            left = await self._library.records(keys, [each.id for each in before])
            stays = {each.id for each in left}  # others claim it
            await self._library.removed(keys, [each for each in before if each.id not in stays])
        facts = outcome.facts
        return {
            UndoOutcome.ANSWER.value: outcome.answer.value,
            UndoOutcome.UNDONE.value: list(facts.get(UndoOutcome.UNDONE.value) or ()),
            UndoOutcome.ITEMS.value: list(facts.get(UndoOutcome.ITEMS.value) or ()),
            UndoOutcome.CODE.value: facts.get(UndoOutcome.CODE.value),
        }

    async def _documents(
        self, context: JobContext, wanted: UndoArguments
    ) -> tuple[RagKeys, list[DocumentRecord]] | None:
        """The documents that may be gone then: the library has to forget their vectors."""
        made = await self._effects.of(wanted.job_id, wanted.token)
        if self._library is None or not made.documents:
            return None
        keys = self._library.keys(made.namespace, context.tenant)
        records = await self._library.records(keys, list(made.documents))
        return keys, [each for each in records if each.revision == made.documents[each.id]]
