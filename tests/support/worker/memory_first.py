"""The text steps of `memory_first_v2` in a worker within the test's process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.features.workflows.memory_first import (
    ANALYTICS,
    APPLY,
    DEFINITION,
    INDEX_EXTRACT,
    PROPOSALS,
    SOURCES,
    SUMMARIZE,
)
from tests.support.worker.workflows import FlowMaker, WorkflowWorker, nothing, registry_of
from worker.features.workflows.memory_first.steps.extract import (
    ExtractionResult,
    ExtractStep,
    extract_terms,
)
from worker.features.workflows.memory_first.steps.proposals import ProposalsStep
from worker.features.workflows.memory_first.steps.sources import SourcesStep
from worker.features.workflows.memory_first.steps.summarize import SummarizeStep
from worker.features.workflows.memory_first.text.analysis import SourceText, analyse

RUNBOOK = """# Dead letters

A message that cannot be handled goes to the Dead Letter Queue (DLQ). The dead letter queue is \
looked at every day by the operator on duty. Whoever empties the dead-letter queue writes down why.

## Retries

Every worker tries a message five times before it gives up. Workers wait longer after each try. \
A worker that dies leaves its message to another worker.
"""
NOTES = """Notes of the operator.

The DLQ held nine messages on 2026-02-14, and the dead letter queue was empty a day later. \
We use GitHub for tickets; GitHub sends a webhook, and GitHub retries it. See Github issues too. \
The web hook is signed. Each webhook has an idempotency key, and idempotency keys expire.
"""


def text(body: str, title: str = "") -> dict[str, str]:
    """A source sent with the request."""
    return {"type": "text", "title": title, "text": body}


def read(*bodies: str, lang: str = "en", media_type: str = "text/markdown") -> list[SourceText]:
    """Texts as the steps pass them to their functions."""
    return [
        SourceText(f"s_{n:03d}", lang, media_type, body) for n, body in enumerate(bodies, start=1)
    ]


def found_in(*bodies: str, lang: str = "en", most: int = 300) -> ExtractionResult:
    """What index_extract finds in some texts."""
    return extract_terms(
        [(each.id, each.lang, analyse(each)) for each in read(*bodies, lang=lang)], most
    )


async def text_worker(make: FlowMaker, root: Path | str = "", model: Any = None) -> WorkflowWorker:
    """A worker with the text steps; the last two steps do nothing."""
    proposals = ProposalsStep()
    registry = registry_of(
        (
            DEFINITION,
            {
                SOURCES: SourcesStep(str(root)),
                INDEX_EXTRACT: ExtractStep(),
                SUMMARIZE: SummarizeStep(model),
                PROPOSALS: proposals,
                APPLY: nothing,
                ANALYTICS: nothing,
            },
        )
    )
    registry.add_service(proposals)
    made: WorkflowWorker = await make(registry=registry)
    return made


async def job_with(worker: WorkflowWorker, sources: Sequence[Any], **options: Any) -> str:
    """A job whose sources were read."""
    job_id = await worker.create(DEFINITION)
    record = await worker.run(job_id, SOURCES, {"sources": list(sources), **options})
    assert record.status.value == "complete", record
    return job_id
