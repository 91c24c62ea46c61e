"""The apply step with crashes, cancellation, concurrent changes and exhausted limits."""

from __future__ import annotations

from typing import Any

import pytest

from common.contracts.rag import MOST_TERMS, RagKeys
from common.features.rag.ontology import TermEntry
from common.features.workflows.effects import EffectStore
from common.features.workflows.types import WorkflowAnswer
from tests.conftest import eventually
from tests.worker.features.workflows.memory_first.apply_kit import (
    DLQ,
    GLOSSARY,
    SAYS_IT,
    SOURCES,
    TWO,
    ApplyMaker,
    id_of,
)
from worker.errors import TransientError
from worker.features.rag.ingest import Ingest


@pytest.mark.parametrize("stops", ["record_documents", "store", "change_terms", "for_execution"])
async def test_another_attempt_continues(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    """As after a crash: the changes are made, and only Redis knows of them."""
    rig = await rigs()
    job_id = await rig.reviewed(TWO, SOURCES)
    owner: Any = Ingest if stops == "store" else EffectStore
    name = "add_new" if stops == "store" else stops
    real, calls = getattr(owner, name), []

    async def stopped(self: Any, *args: Any) -> Any:
        done = await real(self, *args)
        calls.append(name)
        if len(calls) == 2 if stops == "for_execution" else len(calls) == 1:
            raise TransientError("as if it had died")
        return done

    monkeypatch.setattr(owner, name, stopped)
    about = await rig.applied(job_id)
    assert (about["documents"], about["documents_known"], about["terms"]) == (2, 0, 2)
    assert await rig.found("DLQ") == [id_of(GLOSSARY), id_of(SAYS_IT)]
    assert (await rig.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []


async def test_a_full_namespace_fails_the_step_and_leaves_nothing(rigs: ApplyMaker) -> None:
    rig = await rigs(most_documents=1)
    job_id = await rig.reviewed(TWO, SOURCES)
    failed = await rig.run(job_id, "apply")
    assert failed.status.value == "failed"
    assert failed.errors[0]["code"] == "namespace_full"
    assert "RAG_MAX_DOCUMENTS" in failed.errors[0]["message"]
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []
    assert (await rig.snapshot(job_id)).draft_state.value == "failed"


async def test_too_many_terms_fail_the_step_and_leave_nothing(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    full = {f"t{number}": b"x" for number in range(MOST_TERMS)}
    await rig.client.hset(rig.notes().ontology, mapping=full)
    job_id = await rig.reviewed(TWO, SOURCES)
    failed = await rig.run(job_id, "apply")
    assert failed.errors[0]["code"] == "namespace_full"
    assert await rig.documents() == set()
    assert await rig.client.hlen(rig.notes().ontology) == MOST_TERMS


async def test_a_decision_meanwhile_fails_the_step_and_leaves_nothing(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs()
    job_id = await rig.reviewed(TWO, SOURCES)
    real, states = EffectStore.change_terms, rig.workflows.keys.states(job_id)

    async def late(self: EffectStore, *args: Any) -> Any:
        done = await real(self, *args)
        await rig.client.hset(states, "p_001", "approved 9 0 0.900000")
        return done

    monkeypatch.setattr(EffectStore, "change_terms", late)
    failed = await rig.run(job_id, "apply")
    assert failed.errors[0]["code"] == "version_conflict"

    async def gone() -> bool:
        return await rig.client.keys(f"{rig.keys.tag}rag*") == []

    await eventually(gone)


async def test_a_cancelled_job_leaves_nothing(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs()
    job_id = await rig.reviewed(TWO, SOURCES)
    real = Ingest.add_new

    async def cancelled(self: Ingest, *args: Any) -> Any:
        done = await real(self, *args)
        if await rig.documents():
            await rig.workflows.cancel(job_id, rig.once())
        return done

    monkeypatch.setattr(Ingest, "add_new", cancelled)
    await rig.execute(job_id, "apply")
    await rig.core_ended(job_id, "apply")
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []


async def test_changes_of_a_crashed_worker_are_reverted(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crashed worker cannot clean up; the next reconcile round does."""
    rig = await rigs()
    job_id = await rig.reviewed(TWO, SOURCES)

    async def dead(self: EffectStore, *args: Any) -> list[str]:
        return []

    with monkeypatch.context() as patch:
        patch.setattr("worker.features.workflows.job_failure.revert_effects", lambda *_: dead(*_))
        patch.setattr(EffectStore, "revert", dead)
        patch.setattr(EffectStore, "for_execution", failing_at(3))
        assert (await rig.run(job_id, "apply")).status.value == "failed"
        assert await rig.terms() == {"backlog": (), "dead letter queue": ("DLQ",)}
    assert await rig.service.reconciler.revert_effects() == 1
    assert await rig.client.keys(f"{rig.keys.tag}rag*") == []
    assert await rig.service.reconciler.revert_effects() == 0


def failing_at(call: int) -> Any:
    real, calls = EffectStore.for_execution, []

    async def made(self: EffectStore, running: Any) -> Any:
        calls.append(running)
        if len(calls) == call:
            raise RuntimeError("a mistake of ours")
        return await real(self, running)

    return made


async def test_concurrent_changes_are_not_overwritten(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs()
    job_id = await rig.reviewed([DLQ], [])
    real, calls = EffectStore.terms, []

    async def overtaken(self: EffectStore, keys: RagKeys) -> Any:
        found = await real(self, keys)
        calls.append(keys)
        if len(calls) == 1:
            theirs = TermEntry("dead letter queue", ("morgue",)).to_json()
            await rig.client.hset(keys.ontology, "dead letter queue", theirs)
        return found

    monkeypatch.setattr(EffectStore, "terms", overtaken)
    await rig.applied(job_id)
    assert await rig.terms() == {"dead letter queue": ("morgue", "DLQ")}


async def test_another_job_stores_the_same_document_first(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await rigs()
    job_id = await rig.reviewed([], [SAYS_IT])
    other = await rig.reviewed([], [SAYS_IT])
    real, calls = Ingest.add_new, []

    async def overtaken(self: Ingest, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            await rig.applied(other)
        return await real(self, *args)

    monkeypatch.setattr(Ingest, "add_new", overtaken)
    await rig.execute(job_id, "apply")
    about = (await rig.step_ended(job_id, "apply"), await rig.payloads(job_id, "apply"))[1][0]
    assert (about["documents"], about["documents_known"]) == (0, 1)
    if about["undo_token"]:
        await rig.undo(job_id, about["undo_token"])
    assert await rig.documents() == {id_of(SAYS_IT)}


async def test_an_intent_overtaken_by_another_job_is_dropped(
    rigs: ApplyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overtaken attempt crashed before it could drop it; the document must not be reverted."""
    rig = await rigs()
    other = await rig.reviewed([], [GLOSSARY])
    job_id = await rig.reviewed([DLQ], SOURCES)
    real, calls = Ingest.add_new, []

    async def dies(self: Ingest, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            await rig.applied(other)
            raise TransientError("as if it had died")
        return await real(self, *args)

    monkeypatch.setattr(Ingest, "add_new", dies)
    await rig.execute(job_id, "apply")
    await rig.step_ended(job_id, "apply")
    [about] = await rig.payloads(job_id, "apply")
    assert (about["documents"], about["documents_known"]) == (1, 1)
    assert (await rig.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK
    assert await rig.documents() == {id_of(GLOSSARY)}
