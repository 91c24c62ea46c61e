"""The text steps in sequence in a worker."""

from __future__ import annotations

import json

from common.features.rag.ontology import TermEntry, term_key
from common.features.workflows.memory_first import INDEX_EXTRACT, PROPOSALS, SOURCES, SUMMARIZE
from tests.worker.features.workflows.kit import FlowMaker
from tests.worker.features.workflows.memory_first.kit import (
    NOTES,
    RUNBOOK,
    found_in,
    job_with,
    rig,
    text,
)


async def test_from_sources_to_proposals(flows: FlowMaker) -> None:
    worker = await rig(flows)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES, "notes"), text(RUNBOOK, "again")])
    assert (await worker.step(job_id, SOURCES)).summary.startswith("Read 3 sources, ")
    sources = await worker.payloads(job_id, SOURCES)
    assert [each["title"] for each in sources] == ["Dead letters", "notes", "again"]
    assert [each["duplicate_of"] for each in sources] == [None, None, "s_001"]
    for step in (INDEX_EXTRACT, SUMMARIZE, PROPOSALS):
        record = await worker.run(job_id, step)
        assert record.status.value == "complete", record
    terms = await worker.payloads(job_id, INDEX_EXTRACT)
    assert {"dead letter queue", "worker", "2026-02-14", "GitHub"} <= {
        each["term"] for each in terms
    }
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


async def test_a_job_without_sources_goes_through(fake_flows: FlowMaker) -> None:
    worker = await rig(fake_flows)
    job_id = await job_with(worker, [])
    for step in (INDEX_EXTRACT, SUMMARIZE, PROPOSALS):
        record = await worker.run(job_id, step)
        assert record.status.value == "complete", record
        assert await worker.payloads(job_id, step) == []
    assert (await worker.step(job_id, PROPOSALS)).summary == "Generated 0 proposals"


async def test_split_and_whole_extraction_are_equal(fake_flows: FlowMaker) -> None:
    bodies = [f"# Page {n}\n\n{RUNBOOK}\n\n{NOTES}\n\nPage {n} ends." for n in range(20)]
    worker = await rig(fake_flows)
    job_id = await job_with(worker, [text(each) for each in bodies])
    record = await worker.run(job_id, INDEX_EXTRACT, {"max_terms": 10})
    assert record.status.value == "complete", record
    assert record.parts == 3
    expected = [term.payload() for term in found_in(*bodies, most=10).terms[:10]]
    assert await worker.payloads(job_id, INDEX_EXTRACT) == expected
    assert len(expected) == 10


async def test_known_terms_are_not_proposed(fake_flows: FlowMaker) -> None:
    worker = await rig(fake_flows)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    await worker.run(job_id, PROPOSALS)
    before = await worker.payloads(job_id, PROPOSALS)
    entry = TermEntry("dead letter queue", ("DLQ",))
    await worker.client.hset("rag:default:ontology", term_key(entry.term), entry.to_json())
    await worker.run(job_id, PROPOSALS)
    after = await worker.payloads(job_id, PROPOSALS)
    gone = [each for each in before if each not in after]
    assert [(each["kind"], each["from"]) for each in gone] == [("term_alias", "DLQ")]


async def test_options_of_the_proposals(fake_flows: FlowMaker) -> None:
    worker = await rig(fake_flows)
    job_id = await job_with(worker, [text(RUNBOOK), text(NOTES)])
    await worker.run(job_id, PROPOSALS)
    every = await worker.payloads(job_id, PROPOSALS)
    await worker.run(job_id, PROPOSALS, {"limit": 3})
    assert await worker.payloads(job_id, PROPOSALS) == every[:3]
    await worker.run(job_id, PROPOSALS, {"min_confidence": 0.9})
    assert await worker.payloads(job_id, PROPOSALS) == [
        each for each in every if each["confidence"] >= 0.9
    ]
