"""Analytics: metrics compared with numbers counted by hand."""

from __future__ import annotations

from typing import Any

from common.contracts.workflow.statuses import Action
from common.features.workflows.types import DecideCommand, Decision
from tests.worker.features.workflows.memory_first.apply_kit import (
    DLQ,
    GLOSSARY,
    SAYS_IT,
    ApplyMaker,
    ApplyRig,
)
from worker.features.workflows.memory_first.steps.analytics import Coverage, measure_coverage
from worker.features.workflows.memory_first.text.analysis import SourceText

ADD = {"kind": "term_add", "from": None, "to": "backlog"}
UNRELATED = "Cats sleep on the sofa all day."


async def metrics(rig: ApplyRig, job_id: str) -> dict[str, Any]:
    """Metrics by name; those of single steps by name and step."""
    record = await rig.run(job_id, "analytics")
    assert record.status.value == "complete", record
    found = await rig.payloads(job_id, "analytics")
    return {f"{each['metric']} {each.get('step', '')}".strip(): each for each in found}


async def test_metrics_of_a_job(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    job_id = await rig.reviewed([DLQ, ADD, ADD], [SAYS_IT, GLOSSARY, UNRELATED], approve=False)
    undone = await rig.workflows.undo(job_id, "undo_0a0b0c0d", rig.once())
    assert undone.answer.value == "ok", undone
    decisions = [
        Decision("p_001", Action.APPROVE),
        Decision("p_002", Action.APPROVE),
        Decision("p_003", Action.REJECT),
    ]
    wanted = DecideCommand(job_id, "me", decisions, token="0a0b0c0e", reviewing=True)
    await rig.workflows.decide(wanted, rig.once(), rig.ids(), rig.admission)
    await rig.applied(job_id)
    found = await metrics(rig, job_id)
    assert found["proposals"] == {
        "metric": "proposals",
        "value": 3,
        "by_status": {"applied": 2, "rejected": 1},
        "by_kind": {"term_add": 2, "term_alias": 1},
    }
    assert found["acceptance_rate"] == {
        "metric": "acceptance_rate", "value": 0.6667, "accepted": 2, "rejected": 1,
    }  # fmt: skip
    assert found["mean_confidence_accepted"]["value"] == 0.9
    assert found["mean_confidence_rejected"]["value"] == 0.9
    assert found["terms"] == {
        "metric": "terms", "value": 2, "before": 0, "after": 2, "changed": 2,
    }  # fmt: skip
    assert found["documents"]["value"] == 3
    assert found["coverage_sources"] == {
        "metric": "coverage_sources", "value": 0.6667, "covered": 2, "total": 3,
    }  # fmt: skip
    assert found["coverage_chunks"]["covered"] == 2
    assert found["duration_s apply"]["value"] >= 0
    assert found["retries"] == {"metric": "retries", "value": 0, "by_step": {}}
    job = await rig.snapshot(job_id)
    assert (job.status.value, job.progress) == ("completed", 1.0)
    assert job.steps["analytics"].summary == (
        "2 of 3 proposals accepted; terms in 2 of 3 sources, 2 of 3 passages"
    )


async def test_metrics_of_an_empty_job(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    job_id = await rig.reviewed([], [])
    await rig.applied(job_id)
    found = await metrics(rig, job_id)
    for name in ("acceptance_rate", "mean_confidence_accepted", "coverage_chunks"):
        assert found[name]["value"] is None


async def test_steps_that_were_executed_again(fake_rigs: ApplyMaker) -> None:
    rig = await fake_rigs()
    job_id = await rig.reviewed([DLQ], [SAYS_IT])
    await rig.applied(job_id, dry_run=True)
    await rig.applied(job_id, dry_run=False)
    assert (await metrics(rig, job_id))["retries"]["by_step"] == {"apply": 1}


def test_passages_that_hold_a_term() -> None:
    def text(words: str) -> SourceText:
        return SourceText("s_001", "en", "text/plain", words)

    names = ["dead letter queue", "DLQ", "東京"]
    assert measure_coverage([text("Dead-letter queues.")], names) == Coverage(1, 1, 1, 1)
    assert measure_coverage([text("A queue of dead letters.")], names) == Coverage(1, 0, 1, 0)
    assert measure_coverage([text("dlq"), text("cats")], names) == Coverage(2, 1, 2, 1)
    assert measure_coverage([text("私は東京に住む")], names) == Coverage(1, 1, 1, 1)
    assert measure_coverage([text("dlq")], []) == Coverage(1, 0, 1, 0)
    long = "\n\n".join(f"Paragraph {n} says {'word ' * 180}." for n in range(5)) + " the DLQ"
    assert measure_coverage([text(long)], names).covered_chunks == 1
    assert measure_coverage([], names) == Coverage()
