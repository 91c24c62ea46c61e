"""Summaries: extractive, or by a model while it answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.features.workflows.memory_first import SUMMARIZE
from tests.worker.features.workflows.kit import FlowMaker
from tests.worker.features.workflows.memory_first.kit import (
    NOTES,
    RUNBOOK,
    ScriptedModel,
    job_with,
    read,
    rig,
    text,
)
from worker.features.model.errors import ModelUnavailable, NoModel
from worker.features.model.types import ChatRequest, Completion, Sink
from worker.features.workflows.memory_first.text.extractive_summary import (
    join_sentences,
    summarize_all,
    summarize_overall,
    summarize_source,
)

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


def test_summaries_do_not_repeat_sentences() -> None:
    [source] = read(LONG)
    best, _ = summarize_source(source, 5)
    assert sum("Valves" in each.text for each in best) == 1


def test_headings_code_and_tables_are_skipped() -> None:
    body = (
        "# The queue of the worker\n\n```\nthe worker reads the queue.\n```\n\n| the | worker |\n"
    )
    [source] = read(
        body + "\nThe worker reads the queue, and the queue never waits for the worker."
    )
    best, _ = summarize_source(source, 3)
    assert (
        join_sentences(best)
        == "The worker reads the queue, and the queue never waits for the worker."
    )


@pytest.mark.parametrize(
    "body",
    ["word", "a | b\n1 | 2", "```\ncode\n```", "x" * 100_000, "短い。", "死信队列用于存放消息。"],
)
def test_any_text_has_a_summary(body: str) -> None:
    best, _ = summarize_source(read(body)[0], 3)
    assert join_sentences(best)


def test_the_overall_summary_uses_several_sources() -> None:
    sources = read(RUNBOOK, NOTES)
    candidates = [more for _, more in summarize_all(sources, 3)]
    best = summarize_overall(candidates, {source.id: "en" for source in sources}, 3)
    assert {each.source for each in best} == {"s_001", "s_002"}
    assert summarize_overall([], {}, 3) == []


async def test_without_a_model_summaries_are_extractive(fake_flows: FlowMaker) -> None:
    worker = await rig(fake_flows)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    await worker.run(job_id, SUMMARIZE, {"sentences": 2})
    found = await worker.payloads(job_id, SUMMARIZE)
    assert [(each["scope"], each["source"], each["method"]) for each in found] == [
        ("overall", None, "extractive"),
        ("source", "s_001", "extractive"),
        ("source", "s_002", "extractive"),
    ]
    for each in found:
        assert len(each["sentences"]) == 2
        for place in each["sentences"]:
            assert place["source"] in ("s_001", "s_002")


async def test_summaries_by_a_model(fake_flows: FlowMaker) -> None:
    model = ScriptedModel("First.  A sentence that is cut", "Second.", "All of it.")
    worker = await rig(fake_flows, model=model)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    record = await worker.run(job_id, SUMMARIZE)
    assert record.summary == "Summarized 2 sources, 3 of 3 summaries by the model"
    found = await worker.payloads(job_id, SUMMARIZE)
    assert [each["text"] for each in found] == ["All of it.", "First.", "Second."]
    assert [each["sentences"] for each in found] == [[], [], []]
    first = model.asked[0]
    assert (first.temperature, first.seed) == (0.0, 7)
    assert RUNBOOK.strip() in first.messages[1]["content"]


async def test_the_model_can_be_disabled(fake_flows: FlowMaker) -> None:
    model = ScriptedModel("never")
    worker = await rig(fake_flows, model=model)
    job_id = await job_with(worker, [text(RUNBOOK)])
    await worker.run(job_id, SUMMARIZE, {"use_model": False})
    assert model.asked == []
    await worker.run(job_id, SUMMARIZE, {"model_budget_s": 0})
    assert model.asked == []


@pytest.mark.parametrize("error", [NoModel(), ModelUnavailable("it is away")])
async def test_a_failing_model_is_not_used_again(fake_flows: FlowMaker, error: Exception) -> None:
    model = ScriptedModel("First.", error)
    worker = await rig(fake_flows, model=model)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    record = await worker.run(job_id, SUMMARIZE)
    assert record.status.value == "complete"
    found = await worker.payloads(job_id, SUMMARIZE)
    assert [each["method"] for each in found] == ["extractive", "model", "extractive"]
    assert len(model.asked) == 2


class UnresponsiveModel:
    """A model that never answers."""

    name = "silent"
    stopped = 0

    async def complete(self, context: Any, request: ChatRequest, sink: Sink) -> Completion:
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped += 1
        raise AssertionError


async def test_an_unresponsive_model_is_not_waited_for(fake_flows: FlowMaker) -> None:
    model = UnresponsiveModel()
    worker = await rig(fake_flows, model=model)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    await worker.run(job_id, SUMMARIZE, {"model_timeout_s": 0.05})
    found = await worker.payloads(job_id, SUMMARIZE)
    assert {each["method"] for each in found} == {"extractive"}
    assert model.stopped == 1
