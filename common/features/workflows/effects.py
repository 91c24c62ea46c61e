"""EffectStore: effects of a step outside its workflow, recorded so that they can be reverted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.rag import MOST_NAMESPACES, MOST_TERMS, RagKeys
from sluice.common.contracts.workflow.operations import (
    EffectField,
    OperationField,
    WorkflowFact,
    WorkflowOperation,
)
from sluice.common.contracts.workflow.statuses import EXECUTION_ID_PREFIX, UNDO_PREFIX
from sluice.common.features.workflows.scripts import execution_arguments
from sluice.common.features.workflows.store import WorkflowStore
from sluice.common.features.workflows.types import StepExecution, WorkflowOutcome
from sluice.common.jobs.store import read_reply
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint

#: Terms and documents per call, which blocks Redis while it runs.
MOST_PER_CALL: Final = 200


def undo_token_for(execution: str) -> str:
    """The undo token of an execution's effects."""
    return f"{UNDO_PREFIX}{execution.removeprefix(EXECUTION_ID_PREFIX)}"


class TermChange(NamedTuple):
    """A change of an ontology field; an empty value means that the field does not exist."""

    field: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Effects:
    """The effects of an execution so far."""

    #: Field to its values before and after.
    terms: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    #: Document id to its revision.
    documents: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    #: What it found already present and protects from being reverted by others
    #: (`ClaimFieldPrefix`).
    claims: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.terms or self.documents or self.claims)


async def revert_effects(
    store: WorkflowStore, job_id: str, own: StepExecution | None = None
) -> list[str]:
    """Revert the effects of a job's executions that did not complete; returns their tokens.

    A running execution is skipped, unless it is `own`, which reverts its own effects.
    """
    args = execution_arguments(own or StepExecution(job_id, "", ""))
    outcome = await store.call(WorkflowOperation.REVERT, (), args)
    return list(outcome.facts.get(WorkflowFact.ITEMS) or ())


class EffectStore:
    """Changes namespaces for executions of steps, and reverts incomplete changes."""

    def __init__(self, client: Redis, store: WorkflowStore) -> None:
        self._client = client
        self._store = store

    async def record_documents(
        self, running: StepExecution, keys: RagKeys, documents: Mapping[str, str]
    ) -> WorkflowOutcome:
        """Record documents (id to revision) before they are stored, at most 200.

        An empty revision removes the record: another execution has stored the document. OK,
        ALREADY, LOST or MISSING.
        """
        return await self._apply(running, keys, documents, {}, ())

    async def claim_documents(
        self, running: StepExecution, keys: RagKeys, documents: Mapping[str, str]
    ) -> WorkflowOutcome:
        """Protect documents of others (id to revision) from being reverted, at most 200.

        OK, ALREADY, LOST, MISSING or REFUSED{code, items}: `items` have another revision by now.
        """
        return await self._apply(running, keys, {}, documents, ())

    async def change_terms(
        self, running: StepExecution, keys: RagKeys, changes: Sequence[TermChange]
    ) -> WorkflowOutcome:
        """Change terms, at most 200, all or none; an unchanged one is claimed.

        OK, ALREADY, LOST, MISSING or REFUSED{code, items}: `items` are the fields whose present
        value differs from `before`.
        """
        return await self._apply(running, keys, {}, {}, changes)

    async def for_execution(self, running: StepExecution) -> Effects:
        """The effects of an execution so far, in all its attempts."""
        return await self.get(running.job_id, undo_token_for(running.execution))

    async def get(self, job_id: str, token: str) -> Effects:
        """The effects of an operation; empty if there are none."""
        command: Any = self._client.hget(self._store.keys.operations(job_id), token)
        raw = await read_reply(command)
        operation = codec.loads(raw) if raw else {}
        effects = operation.get(OperationField.EFFECTS) or {}
        terms = effects.get(EffectField.TERMS) or {}
        return Effects(
            {
                name: (
                    change[EffectField.BEFORE].encode(),
                    change[EffectField.AFTER].encode(),
                )
                for name, change in terms.items()
            },
            dict(effects.get(EffectField.DOCUMENTS) or {}),
            str(effects.get(EffectField.NAMESPACE, "")),
            frozenset(effects.get(EffectField.CLAIMS) or ()),
        )

    async def terms(self, keys: RagKeys) -> dict[str, bytes]:
        """The stored entries of an ontology, by field."""
        command: Any = self._client.hgetall(keys.ontology)
        return {
            codec.decode_text(name): raw for name, raw in (await read_reply(command) or {}).items()
        }

    async def revert(self, job_id: str, own: StepExecution | None = None) -> list[str]:
        return await revert_effects(self._store, job_id, own)

    async def jobs_with_effects(self) -> list[str]:
        """Jobs that may have effects to revert."""
        command: Any = self._client.smembers(self._store.keys.jobs_with_effects)
        return sorted(codec.decode_text(name) for name in await read_reply(command) or ())

    async def _apply(
        self,
        running: StepExecution,
        keys: RagKeys,
        documents: Mapping[str, str],
        claimed: Mapping[str, str],
        changes: Sequence[TermChange],
    ) -> WorkflowOutcome:
        if max(len(documents), len(claimed)) > MOST_PER_CALL or len(changes) > MOST_PER_CALL:
            raise ValueError(f"at most {MOST_PER_CALL} at a time")
        args: list[str | bytes | int] = [
            *(*execution_arguments(running), undo_token_for(running.execution)),
            *(keys.prefix, keys.namespace, keys.namespaces),
            *(MOST_NAMESPACES, MOST_TERMS, len(documents) + len(claimed)),
        ]
        for document_id, revision in documents.items():
            args += (document_id, revision, "")
        for document_id, revision in claimed.items():
            args += (document_id, revision, 1)
        for change in changes:
            args += change
        size = sum(len(change.before) + len(change.after) for change in changes)
        outcome = await self._store.call(WorkflowOperation.APPLY, (), args, size)
        crashpoints.reach(CrashPoint.AFTER_EFFECT)
        return outcome
