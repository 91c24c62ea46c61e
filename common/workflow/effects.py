"""EffectStore: what a step does beyond its workflow, written down so that it can be taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common import codec, crashpoints
from common.contracts.rag import MOST_NAMESPACES, MOST_TERMS, RagKeys
from common.contracts.workflow import (
    EXECUTION_ID_PREFIX,
    UNDO_PREFIX,
    EffectField,
    Fact,
    OperationField,
    WorkflowOperation,
)
from common.crashpoints import CrashPoint
from common.store import read
from common.workflow.arguments import running_arguments
from common.workflow.store import WorkflowStore
from common.workflow.types import Outcome, Running

#: Terms and documents of one call: it keeps Redis from others for as long as it takes.
MOST_PER_CALL: Final = 200


def token_of(execution: str) -> str:
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
    #: What it found as it wanted it, and keeps from being taken back by others (`ClaimKind`).
    claims: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.terms or self.documents or self.claims)


async def take_back(store: WorkflowStore, job_id: str, mine: Running | None = None) -> list[str]:
    """Take back what executions of a job did and did not bring to its end; returns the tokens.

    One that still runs is left alone, unless it is `mine`, which asks itself.
    """
    args = running_arguments(mine or Running(job_id, "", ""))
    outcome = await store.call(WorkflowOperation.REVERT, (), args)
    return list(outcome.facts.get(Fact.ITEMS.value) or ())


class EffectStore:
    """Changes namespaces for executions of steps, and takes back what these leave undone."""

    def __init__(self, client: Redis, store: WorkflowStore) -> None:
        self._client = client
        self._store = store

    async def note(self, running: Running, keys: RagKeys, documents: Mapping[str, str]) -> Outcome:
        """Write down documents, by id and revision, before they are stored: at most 200.

        An empty revision strikes one out: another had stored it. OK, ALREADY, LOST or MISSING.
        """
        return await self._apply(running, keys, documents, {}, ())

    async def claim(self, running: Running, keys: RagKeys, documents: Mapping[str, str]) -> Outcome:
        """Keep documents of others, by id and revision, from being taken back: at most 200.

        OK, ALREADY, LOST, MISSING or REFUSED{code, items}, where `items` are not those any more.
        """
        return await self._apply(running, keys, {}, documents, ())

    async def change(
        self, running: Running, keys: RagKeys, changes: Sequence[TermChange]
    ) -> Outcome:
        """Change terms, at most 200, all or none; one that stays as it is, is claimed.

        OK, ALREADY, LOST, MISSING or REFUSED{code, items}, where `items` are the fields that do not
        say what they said before.
        """
        return await self._apply(running, keys, {}, {}, changes)

    async def made(self, running: Running) -> Effects:
        """What an execution has done so far, by itself or in an earlier attempt."""
        return await self.of(running.job_id, token_of(running.execution))

    async def of(self, job_id: str, token: str) -> Effects:
        """What an operation has done; nothing where there is none."""
        command: Any = self._client.hget(self._store.keys.operations(job_id), token)
        raw = await read(command)
        operation = codec.loads(raw) if raw else {}
        effects = operation.get(OperationField.EFFECTS.value) or {}
        terms = effects.get(EffectField.TERMS.value) or {}
        return Effects(
            {
                name: (
                    change[EffectField.BEFORE.value].encode(),
                    change[EffectField.AFTER.value].encode(),
                )
                for name, change in terms.items()
            },
            dict(effects.get(EffectField.DOCUMENTS.value) or {}),
            str(effects.get(EffectField.NAMESPACE.value, "")),
            frozenset(effects.get(EffectField.CLAIMS.value) or ()),
        )

    async def terms(self, keys: RagKeys) -> dict[str, bytes]:
        """An ontology as it is stored, by field."""
        command: Any = self._client.hgetall(keys.ontology)
        return {codec.text(name): raw for name, raw in (await read(command) or {}).items()}

    async def revert(self, job_id: str, mine: Running | None = None) -> list[str]:
        """See `take_back`."""
        return await take_back(self._store, job_id, mine)

    async def unsettled(self) -> list[str]:
        """Jobs that may have something to take back."""
        command: Any = self._client.smembers(self._store.keys.unsettled)
        return sorted(codec.text(name) for name in await read(command) or ())

    async def _apply(
        self,
        running: Running,
        keys: RagKeys,
        documents: Mapping[str, str],
        claimed: Mapping[str, str],
        changes: Sequence[TermChange],
    ) -> Outcome:
        if max(len(documents), len(claimed)) > MOST_PER_CALL or len(changes) > MOST_PER_CALL:
            raise ValueError(f"at most {MOST_PER_CALL} at a time")
        args: list[str | bytes | int] = [
            *(*running_arguments(running), token_of(running.execution)),
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
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_EFFECT)
        return outcome
