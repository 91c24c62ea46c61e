"""The internal tool `workflow.undo`: takes back what reached beyond the workflow."""

from __future__ import annotations

from typing import Any

from common.contracts.rag import RagKeys
from common.contracts.workflow.fields import UndoResultField
from common.features.rag.documents import DocumentRecord
from common.features.workflows.effects import EffectStore
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import WorkflowAnswer
from worker.execution.context import JobContext
from worker.features.rag.service import RagService
from worker.features.workflows.arguments import UndoArguments


class UndoRunner:
    """Undoes operations with effects. Done again, it finds that it is done."""

    def __init__(
        self, store: WorkflowStore, effects: EffectStore, library: RagService | None
    ) -> None:
        self._store = store
        self._effects = effects
        self._rag_service = library

    async def undo(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        """What came of it, for the gateway, which waits: a refusal is no failure of the job."""
        wanted = UndoArguments.of(args)
        documents = await self._documents(context, wanted)
        outcome = await self._store.undo_with_effects(wanted.job_id, wanted.token)
        if documents and outcome.answer is WorkflowAnswer.OK and self._rag_service is not None:
            keys, before = documents
            left = await self._rag_service.records(keys, [each.id for each in before])
            stays = {each.id for each in left}  # others claim it
            await self._rag_service.removed(keys, [each for each in before if each.id not in stays])
        facts = outcome.facts
        return {
            UndoResultField.ANSWER: outcome.answer.value,
            UndoResultField.UNDONE: list(facts.get(UndoResultField.UNDONE) or ()),
            UndoResultField.ITEMS: list(facts.get(UndoResultField.ITEMS) or ()),
            UndoResultField.CODE: facts.get(UndoResultField.CODE),
        }

    async def _documents(
        self, context: JobContext, wanted: UndoArguments
    ) -> tuple[RagKeys, list[DocumentRecord]] | None:
        """The documents that may be gone then: the library has to forget their vectors."""
        made = await self._effects.get(wanted.job_id, wanted.token)
        if self._rag_service is None or not made.documents:
            return None
        keys = self._rag_service.keys(made.namespace, context.tenant)
        records = await self._rag_service.records(keys, list(made.documents))
        return keys, [each for each in records if each.revision == made.documents[each.id]]
