"""Steps of `memory_first_v2` in a worker: the text steps, or `apply` with given proposals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from sluice.common.contracts.rag import RagKeys
from sluice.common.contracts.workflow.statuses import Action
from sluice.common.features.rag.ontology import TermEntry, parse_entries
from sluice.common.features.workflows.memory_first import (
    ANALYTICS,
    APPLY,
    DEFINITION,
    INDEX_EXTRACT,
    PROPOSALS,
    SOURCES,
    SUMMARIZE,
)
from sluice.common.features.workflows.records import Item
from sluice.common.features.workflows.types import DecideCommand, WorkflowAnswer, WorkflowOutcome
from sluice.worker.features.rag.service import RagService
from sluice.worker.features.workflows import service as workflow_service
from sluice.worker.features.workflows.context import StepContext
from sluice.worker.features.workflows.memory_first.sources import packed
from sluice.worker.features.workflows.memory_first.sources.packed import Source
from sluice.worker.features.workflows.memory_first.steps.analytics import AnalyticsStep
from sluice.worker.features.workflows.memory_first.steps.apply import ApplyStep
from sluice.worker.features.workflows.memory_first.steps.extract import (
    ExtractionResult,
    ExtractStep,
    extract_terms,
)
from sluice.worker.features.workflows.memory_first.steps.proposals import ProposalsStep
from sluice.worker.features.workflows.memory_first.steps.sources import SourcesStep
from sluice.worker.features.workflows.memory_first.steps.summarize import SummarizeStep
from sluice.worker.features.workflows.memory_first.text.analysis import SourceText, analyse
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.features.workflows.registry import Step
from sluice.worker.handlers import rag, tool
from sluice.worker.registry import Registry
from tests.support.worker.workflows import FlowMaker, WorkflowWorker, nothing, registry_of

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


def steps_of(*functions: Step) -> dict[str, Step]:
    """The functions of the steps, in the order of the workflow."""
    names = [SOURCES, INDEX_EXTRACT, SUMMARIZE, PROPOSALS, APPLY, ANALYTICS]
    return dict(zip(names, functions, strict=True))


async def text_worker(make: FlowMaker, root: Path | str = "", model: Any = None) -> WorkflowWorker:
    """A worker with the text steps; the last two steps do nothing."""
    proposals = ProposalsStep()
    sources, summarize = SourcesStep(str(root)), SummarizeStep(model)
    registry = registry_of(
        (DEFINITION, steps_of(sources, ExtractStep(), summarize, proposals, nothing, nothing))
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


DLQ = {"kind": "term_alias", "from": "DLQ", "to": "dead letter queue"}
SAYS_IT = "Messages that fail go to the dead letter queue and wait there."
GLOSSARY = "The Dead Letter Queue (DLQ) keeps what nobody could do."
TWO = [DLQ, {"kind": "term_add", "from": None, "to": "backlog"}]
TEXTS = [SAYS_IT, GLOSSARY]


def id_of(text: str) -> str:
    """Id of a source's document."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ApplyWorker(WorkflowWorker):
    """Inputs of the steps, and checks of their results."""

    library: RagService

    async def reviewed(
        self,
        proposals: list[dict[str, Any]],
        sources: list[str],
        *,
        approve: bool = True,
        **new: Any,
    ) -> str:
        """A job whose proposals were all decided; returns its id."""
        new.setdefault("namespace", self.notes().namespace)
        given = {"sources": {"sources": sources}, "proposals": {"proposals": proposals}}
        options = {step: json.dumps(each).encode() for step, each in given.items()}
        job_id = await self.create(DEFINITION, options=options, **new)
        await self.run(job_id, "review")  # after all steps before it
        if proposals:
            await self.decide(job_id, Action.APPROVE if approve else Action.REJECT)
        return job_id

    async def decide(self, job_id: str, action: Action) -> None:
        wanted = DecideCommand(job_id, "me", action=action, token="0a0b0c0d", reviewing=True)
        found = await self.workflows.decide(wanted, self.once(), self.ids(), self.admission)
        assert found.facts.get("completed"), found

    async def applied(self, job_id: str, **options: Any) -> dict[str, Any]:
        """Run `apply`; returns the payload of its first item."""
        record = await self.run(job_id, "apply", options)
        assert record.status.value == "complete", record
        about: dict[str, Any] = (await self.payloads(job_id, "apply"))[0]
        return about

    async def apply(
        self, proposals: list[dict[str, Any]], sources: list[str], **new: Any
    ) -> tuple[str, dict[str, Any]]:
        """A job that applied them; returns its id and the payload of its first item."""
        job_id = await self.reviewed(proposals, sources, **new)
        return job_id, await self.applied(job_id)

    async def undo(self, job_id: str, token: str) -> WorkflowOutcome:
        return await self.workflows.undo_with_effects(job_id, token)

    async def undone(self, job_id: str, about: dict[str, Any]) -> None:
        """Undo what `apply` did, successfully."""
        assert (await self.undo(job_id, about["undo_token"])).answer is WorkflowAnswer.OK

    async def undo_by_job(self, job_id: str, token: str) -> None:
        """Undo as the gateway does."""
        args = {"workflow_job_id": job_id, "undo_token": token}
        result = await self.result(await self.run_tool("undo", args))
        assert result["answer"] == "ok"

    def notes(self, tenant: str = "") -> RagKeys:
        """The namespace that jobs build."""
        return RagKeys("notes", tenant, self.keys.tag)

    async def terms(self, tenant: str = "") -> dict[str, tuple[str, ...]]:
        """Terms and their aliases."""
        return {entry.term: entry.aliases for entry in await self.entries(tenant)}

    async def entries(self, tenant: str = "") -> list[TermEntry]:
        return parse_entries(await self.client.hgetall(self.notes(tenant).ontology))

    async def documents(self, tenant: str = "") -> set[str]:
        found = await self.client.hkeys(self.notes(tenant).documents)
        return {name.decode() for name in found}

    async def found(self, query: str, tenant: str = "") -> list[str]:
        """Documents that a query finds."""
        hits = await self.library.search(tenant, "notes", query, 9)
        return list(dict.fromkeys(hit.document_id for hit in hits))

    async def nothing_left(self) -> bool:
        """True if no documents and no terms are stored."""
        return await self.client.keys(f"{self.keys.tag}rag*") == []

    async def proposals(self, job_id: str) -> dict[str, str]:
        """Ids and statuses of the proposals."""
        items: list[Item] = await self.reader_of_jobs.step_items(job_id, "proposals")
        return {item.id: item.status.value for item in items}


async def give_sources(context: StepContext) -> StepOutput:
    """The texts of the options, stored as the real step does."""
    items = []
    for number, text in enumerate(context.options["sources"]):
        digest = hashlib.sha256(text.encode()).hexdigest()
        await context.put(packed.text_name(digest), packed.pack_text(text))
        size = len(text.encode())
        source = Source("", f"Source {number}", size, digest, "en", len(text), "text/plain")
        items.append(StepItem(source.payload()))
    return StepOutput("given", items)


async def give_proposals(context: StepContext) -> StepOutput:
    """The proposals of the options."""
    items = [StepItem(each, "proposed", 0.9) for each in context.options["proposals"]]
    return StepOutput("given", items)


MakeApply = Callable[..., Awaitable[ApplyWorker]]


def apply_registry(library: RagService) -> Registry:
    """The real `apply` and `analytics` steps, after steps that give what the test wants."""
    registry, apply = Registry(), ApplyStep(library)
    tool.add_handler(registry)
    rag.add_handler(registry, library, None)
    registry.add_service(library)
    registry.add_service(apply)
    given, analytics = (give_sources, nothing, nothing, give_proposals), AnalyticsStep(library)
    registry.workflows.add(DEFINITION, steps_of(*given, apply, analytics))
    workflow_service.add_service(registry, 60.0, library)
    return registry
