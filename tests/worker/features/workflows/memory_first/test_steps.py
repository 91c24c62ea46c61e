"""The text steps in a worker: proposals, summaries and metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.contracts.workflow.statuses import Action
from sluice.common.features.rag.ontology import TermEntry, term_key
from sluice.common.features.workflows.memory_first import (
    INDEX_EXTRACT,
    PROPOSALS,
    SOURCES,
    SUMMARIZE,
)
from sluice.common.features.workflows.types import DecideCommand, Decision
from sluice.worker.features.model.errors import ModelUnavailable, NoModel
from sluice.worker.features.model.types import Completion
from sluice.worker.features.workflows.memory_first.steps.analytics import Coverage, measure_coverage
from sluice.worker.features.workflows.memory_first.text.analysis import SourceText
from sluice.worker.features.workflows.memory_first.text.extractive_summary import (
    join_sentences,
    summarize_all,
    summarize_overall,
    summarize_source,
)
from tests.support.worker.memory_first import (
    DLQ,
    GLOSSARY,
    NOTES,
    RUNBOOK,
    SAYS_IT,
    ApplyWorker,
    found_in,
    job_with,
    read,
    text,
    text_worker,
)
from tests.support.worker.model_tasks import ScriptedModel
from tests.support.worker.workflows import FlowMaker, WorkflowWorker

pytestmark = pytest.mark.fakeredis_only


async def completed(
    worker: WorkflowWorker, job_id: str, step: str, **options: Any
) -> list[dict[str, Any]]:
    """Run a step that succeeds; returns the payloads of its items."""
    record = await worker.run(job_id, step, options)
    assert record.status.value == "complete", record
    return await worker.payloads(job_id, step)


async def test_from_sources_to_proposals(flows: FlowMaker) -> None:
    worker = await text_worker(flows)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES, "notes"), text(RUNBOOK, "again")])
    assert (await worker.step(job_id, SOURCES)).summary.startswith("Read 3 sources, ")
    sources = await worker.payloads(job_id, SOURCES)
    assert [each["title"] for each in sources] == ["Dead letters", "notes", "again"]
    assert [each["duplicate_of"] for each in sources] == [None, None, "s_001"]
    for step in (INDEX_EXTRACT, SUMMARIZE, PROPOSALS):
        await completed(worker, job_id, step)
    terms = await worker.payloads(job_id, INDEX_EXTRACT)
    names = {each["term"] for each in terms}
    assert names >= {"dead letter queue", "worker", "2026-02-14", "GitHub"}
    for term in terms:
        for place in term["evidence"]:
            source = {"s_001": RUNBOOK, "s_002": NOTES}[place["source"]]
            assert 0 <= place["offset"] < len(source)
    items = await worker.reader_of_jobs.step_items(job_id, PROPOSALS)
    assert (await worker.step(job_id, PROPOSALS)).summary == f"Generated {len(items)} proposals"
    assert {item.status.value for item in items} == {"proposed"}
    payloads = [json.loads(item.payload) for item in items]
    assert [item.confidence for item in items] == [each["confidence"] for each in payloads]
    reported = {(each["kind"], each["from"], each["to"]) for each in payloads}
    assert ("term_alias", "DLQ", "dead letter queue") in reported
    assert ("term_merge", "dead-letter queue", "dead letter queue") in reported
    assert ("term_merge", "web hook", "webhook") in reported
    assert ("term_case", "Github", "GitHub") in reported
    assert ("term_add", None, "worker") in reported
    # A job without sources.
    job_id = await job_with(worker, [])
    for step in (INDEX_EXTRACT, SUMMARIZE, PROPOSALS):
        assert await completed(worker, job_id, step) == []
    assert (await worker.step(job_id, PROPOSALS)).summary == "Generated 0 proposals"


async def test_split_and_whole_extraction_are_equal(flows: FlowMaker) -> None:
    bodies = [f"# Page {n}\n\n{RUNBOOK}\n\n{NOTES}\n\nPage {n} ends." for n in range(20)]
    worker = await text_worker(flows)
    job_id = await job_with(worker, [text(each) for each in bodies])
    found = await completed(worker, job_id, INDEX_EXTRACT, max_terms=10)
    assert found == [term.payload() for term in found_in(*bodies, most=10).terms[:10]]
    assert len(found) == 10
    assert (await worker.step(job_id, INDEX_EXTRACT)).parts == 3


async def test_options_of_the_steps_without_a_model(flows: FlowMaker) -> None:
    worker = await text_worker(flows)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    found = await completed(worker, job_id, SUMMARIZE, sentences=2)
    scopes = [(each["scope"], each["source"]) for each in found]
    assert scopes == [("overall", None), ("source", "s_001"), ("source", "s_002")]
    assert {each["method"] for each in found} == {"extractive"}
    for each in found:
        assert len(each["sentences"]) == 2
        for place in each["sentences"]:
            assert place["source"] in ("s_001", "s_002")
    every = await completed(worker, job_id, PROPOSALS)
    assert await completed(worker, job_id, PROPOSALS, limit=3) == every[:3]
    sure = [each for each in every if each["confidence"] >= 0.9]
    assert await completed(worker, job_id, PROPOSALS, min_confidence=0.9) == sure
    # Known terms are not proposed.
    entry = TermEntry("dead letter queue", ("DLQ",))
    await worker.client.hset("rag:default:ontology", term_key(entry.term), entry.to_json())
    after = await completed(worker, job_id, PROPOSALS)
    gone = [each for each in every if each not in after]
    assert [(each["kind"], each["from"]) for each in gone] == [("term_alias", "DLQ")]


LONG = "\n\n".join(
    f"Valves of type {n} close the pipe when the pressure of water rises. Rain falls on day {n}."
    for n in range(30)
)


def test_a_summary_is_made_of_exact_sentences_in_their_order() -> None:
    [source] = read(RUNBOOK)
    best, _ = summarize_source(source, 3)
    assert len(best) == 3
    assert [each.start for each in best] == sorted(each.start for each in best)
    for each in best:
        assert source.text[each.start : each.end] == each.text
        assert not each.text.startswith("#")
    assert "Dead Letter Queue (DLQ)" in join_sentences(best)
    best, _ = summarize_source(read(LONG)[0], 5)  # no sentence is repeated
    assert sum("Valves" in each.text for each in best) == 1


def test_headings_code_and_tables_are_skipped_if_possible() -> None:
    skipped = "# The queue\n\n```\nthe worker reads the queue.\n```\n\n| the | worker |\n\n"
    sentence = "The worker reads the queue, and the queue never waits for the worker."
    best, _ = summarize_source(read(skipped + sentence)[0], 3)
    assert join_sentences(best) == sentence
    odd = ["word", "a | b\n1 | 2", "```\ncode\n```", "x" * 100_000, "短い。"]
    for body in (*odd, "死信队列用于存放消息。"):
        best, _ = summarize_source(read(body)[0], 3)
        assert join_sentences(best)


def test_the_overall_summary_uses_several_sources() -> None:
    sources = read(RUNBOOK, NOTES)
    candidates = [more for _, more in summarize_all(sources, 3)]
    best = summarize_overall(candidates, {source.id: "en" for source in sources}, 3)
    assert {each.source for each in best} == {"s_001", "s_002"}
    assert summarize_overall([], {}, 3) == []


async def test_summaries_by_a_model(flows: FlowMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel("First.  A sentence that is cut", "Second.", "All of it.")
    worker = await text_worker(flows, model=model)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    record = await worker.run(job_id, SUMMARIZE)
    assert record.summary == "Summarized 2 sources, 3 of 3 summaries by the model"
    found = await worker.payloads(job_id, SUMMARIZE)
    assert [each["text"] for each in found] == ["All of it.", "First.", "Second."]
    assert [each["sentences"] for each in found] == [[], [], []]
    first = model.requests[0]
    assert (first.temperature, first.seed) == (0.0, 7)
    assert RUNBOOK.strip() in first.messages[1]["content"]
    model.requests.clear()
    for options in ({"use_model": False}, {"model_budget_s": 0}):
        await worker.run(job_id, SUMMARIZE, options)
        assert model.requests == []
    # A model that fails is not used again.
    for error in (NoModel(), ModelUnavailable("it is away")):
        model.requests.clear()
        model.lines = ["First.", error]
        found = await completed(worker, job_id, SUMMARIZE)
        assert [each["method"] for each in found] == ["extractive", "model", "extractive"]
        assert len(model.requests) == 2
    # A model that never answers is not waited for.
    stopped = []

    async def never_answers(*_: Any) -> Completion:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)
        raise AssertionError

    monkeypatch.setattr(model, "complete", never_answers)
    found = await completed(worker, job_id, SUMMARIZE, model_timeout_s=0.05)
    assert {each["method"] for each in found} == {"extractive"}
    assert len(stopped) == 1


ADD = {"kind": "term_add", "from": None, "to": "backlog"}
UNRELATED = "Cats sleep on the sofa all day."


async def metrics(worker: ApplyWorker, job_id: str) -> dict[str, Any]:
    """Metrics by name; those of single steps by name and step."""
    found = await completed(worker, job_id, "analytics")
    return {f"{each['metric']} {each.get('step', '')}".strip(): each for each in found}


async def test_metrics_of_a_job(jobs: ApplyWorker) -> None:
    job_id = await jobs.reviewed([DLQ, ADD, ADD], [SAYS_IT, GLOSSARY, UNRELATED], approve=False)
    undone = await jobs.workflows.undo(job_id, "undo_0a0b0c0d", jobs.once())
    assert undone.answer.value == "ok", undone
    actions = {"p_001": Action.APPROVE, "p_002": Action.APPROVE, "p_003": Action.REJECT}
    decisions = [Decision(name, action) for name, action in actions.items()]
    wanted = DecideCommand(job_id, "me", decisions, token="0a0b0c0e", reviewing=True)
    await jobs.workflows.decide(wanted, jobs.once(), jobs.ids(), jobs.admission)
    await jobs.applied(job_id)
    found = await metrics(jobs, job_id)
    assert found["proposals"] == {
        "metric": "proposals", "value": 3, "by_status": {"applied": 2, "rejected": 1},
        "by_kind": {"term_add": 2, "term_alias": 1},
    }  # fmt: skip
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
    job = await jobs.snapshot(job_id)
    assert (job.status.value, job.progress) == ("completed", 1.0)
    assert job.steps["analytics"].summary == (
        "2 of 3 proposals accepted; terms in 2 of 3 sources, 2 of 3 passages"
    )
    # A job without proposals, and one with a step that was executed again.
    job_id = await jobs.reviewed([], [])
    await jobs.applied(job_id)
    found = await metrics(jobs, job_id)
    for name in ("acceptance_rate", "mean_confidence_accepted", "coverage_chunks"):
        assert found[name]["value"] is None
    job_id = await jobs.reviewed([DLQ], [SAYS_IT])
    await jobs.applied(job_id, dry_run=True)
    await jobs.applied(job_id, dry_run=False)
    assert (await metrics(jobs, job_id))["retries"]["by_step"] == {"apply": 1}


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
