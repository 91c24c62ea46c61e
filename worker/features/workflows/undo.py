"""The internal tool `workflow.undo`: undoes changes outside of the workflow."""

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
    """Undoes operations with effects. Idempotent."""

    def __init__(
        self, store: WorkflowStore, effects: EffectStore, rag_service: RagService | None
    ) -> None:
        self._store = store
        self._effects = effects
        self._rag_service = rag_service

    async def undo(self, context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
        """Result for the gateway, which waits for it. A refusal does not fail the job."""
        arguments = UndoArguments.of(args)
        documents = await self._documents(context, arguments)
        outcome = await self._store.undo_with_effects(arguments.job_id, arguments.token)
        if documents and outcome.answer is WorkflowAnswer.OK and self._rag_service is not None:
            keys, before = documents
            left = await self._rag_service.records(keys, [each.id for each in before])
            kept = {each.id for each in left}  # claimed by other jobs
            await self._rag_service.removed(keys, [each for each in before if each.id not in kept])
        facts = outcome.facts
        return {
            UndoResultField.ANSWER: outcome.answer.value,
            UndoResultField.UNDONE: list(facts.get(UndoResultField.UNDONE) or ()),
            UndoResultField.ITEMS: list(facts.get(UndoResultField.ITEMS) or ()),
            UndoResultField.CODE: facts.get(UndoResultField.CODE),
        }

    async def _documents(
        self, context: JobContext, arguments: UndoArguments
    ) -> tuple[RagKeys, list[DocumentRecord]] | None:
        """The documents that the undo may delete; their vectors must be removed."""
        effects = await self._effects.get(arguments.job_id, arguments.token)
        if self._rag_service is None or not effects.documents:
            return None
        keys = self._rag_service.keys(effects.namespace, context.tenant)
        records = await self._rag_service.records(keys, list(effects.documents))
        return keys, [each for each in records if each.revision == effects.documents[each.id]]
