"""EffectStore: what a step does beyond its workflow, written down so that it can be taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec
from common.contracts.rag import MOST_NAMESPACES, MOST_TERMS, RagKeys
from common.contracts.workflow.operations import (
    EffectField,
    OperationField,
    WorkflowFact,
    WorkflowOperation,
)
from common.contracts.workflow.statuses import EXECUTION_ID_PREFIX, UNDO_PREFIX
from common.features.workflows.scripts import execution_arguments
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import StepExecution, WorkflowOutcome
from common.jobs.store import read_reply
from common.process import crashpoints
from common.process.crashpoints import CrashPoint

#: Terms and documents of one call: it keeps Redis from others for as long as it takes.
MOST_PER_CALL: Final = 200


def undo_token_for(execution: str) -> str:
    """The undo token of what an execution does."""
    return f"{UNDO_PREFIX}{execution.removeprefix(EXECUTION_ID_PREFIX)}"


class TermChange(NamedTuple):
    """A field of an ontology: what it says, and what it shall say; empty for nothing."""

    field: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Effects:
    """What an execution has done so far."""

    #: By field: before and after.
    terms: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    #: By id: the revision.
    documents: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    #: What it found as it wanted it, and keeps from being taken back by others
    #: (`ClaimFieldPrefix`).
    claims: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.terms or self.documents or self.claims)


async def revert_effects(
    store: WorkflowStore, job_id: str, mine: StepExecution | None = None
) -> list[str]:
    """Take back what executions of a job did and did not bring to its end; returns the tokens.

    One that still runs is left alone, unless it is `mine`, which asks itself.
    """
    args = execution_arguments(mine or StepExecution(job_id, "", ""))
    outcome = await store.call(WorkflowOperation.REVERT, (), args)
    return list(outcome.facts.get(WorkflowFact.ITEMS) or ())


class EffectStore:
    """Changes namespaces for executions of steps, and takes back what these leave undone."""

    def __init__(self, client: Redis, store: WorkflowStore) -> None:
        self._client = client
        self._store = store

    async def record_documents(
        self, running: StepExecution, keys: RagKeys, documents: Mapping[str, str]
    ) -> WorkflowOutcome:
        """Write down documents, by id and revision, before they are stored: at most 200.

        An empty revision strikes one out: another had stored it. OK, ALREADY, LOST or MISSING.
        """
        return await self._apply(running, keys, documents, {}, ())

    async def claim_documents(
        self, running: StepExecution, keys: RagKeys, documents: Mapping[str, str]
    ) -> WorkflowOutcome:
        """Keep documents of others, by id and revision, from being taken back: at most 200.

        OK, ALREADY, LOST, MISSING or REFUSED{code, items}, where `items` are not those any more.
        """
        return await self._apply(running, keys, {}, documents, ())

    async def change_terms(
        self, running: StepExecution, keys: RagKeys, changes: Sequence[TermChange]
    ) -> WorkflowOutcome:
        """Change terms, at most 200, all or none; one that stays as it is, is claimed.

        OK, ALREADY, LOST, MISSING or REFUSED{code, items}, where `items` are the fields that do not
        say what they said before.
        """
        return await self._apply(running, keys, {}, {}, changes)

    async def for_execution(self, running: StepExecution) -> Effects:
        """What an execution has done so far, by itself or in an earlier attempt."""
        return await self.get(running.job_id, undo_token_for(running.execution))

    async def get(self, job_id: str, token: str) -> Effects:
        """What an operation has done; nothing where there is none."""
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
        """An ontology as it is stored, by field."""
        command: Any = self._client.hgetall(keys.ontology)
        return {
            codec.decode_text(name): raw for name, raw in (await read_reply(command) or {}).items()
        }

    async def revert(self, job_id: str, mine: StepExecution | None = None) -> list[str]:
        return await revert_effects(self._store, job_id, mine)

    async def jobs_with_effects(self) -> list[str]:
        """Jobs that may have something to take back."""
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
