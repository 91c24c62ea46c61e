"""The step `proposals`: what to remember of the sources, for a person to decide on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from common.contracts.rag import MOST_TERMS, RagKeys
from common.contracts.workflow import ItemStatus
from common.rag_ontology import OntologyReader, TermEntry
from common.workflow.memory_first import LIMIT, MIN_CONFIDENCE
from worker.services import House, Service
from worker.workflows.memory_first import texts
from worker.workflows.memory_first.extract import findings_of
from worker.workflows.memory_first.findings import Findings
from worker.workflows.memory_first.moves import moves
from worker.workflows.memory_first.proposing import Known, Proposal, propose
from worker.workflows.memory_first.texts import Source
from worker.workflows.output import StepItem, StepOutput

if TYPE_CHECKING:
    from worker.workflows.context import StepContext


class ProposalsStep(Service):
    """Makes proposals of what was found and is not known yet."""

    def __init__(self) -> None:
        self._redis: Redis | None = None
        self._tag = ""

    async def start(self, house: House) -> None:
        """Know where the terms of a namespace are."""
        self._redis, self._tag = house.redis, house.keys.tag

    async def __call__(self, context: StepContext) -> StepOutput:
        """The best of them, in order."""
        options = context.options
        found = await findings_of(context)
        entries = await self._known(context)
        sources = await texts.sources(context) if options.get("organize") else []
        proposals = await context.compute(
            proposed,
            found,
            entries,
            sources,
            int(options.get("limit", LIMIT)),
            float(options.get("min_confidence", MIN_CONFIDENCE)),
        )
        return StepOutput(
            f"Generated {len(proposals)} proposals",
            [
                StepItem(each.payload(), ItemStatus.PROPOSED.value, each.confidence)
                for each in proposals
            ],
        )

    async def _known(self, context: StepContext) -> list[TermEntry]:
        if self._redis is None:
            return []
        keys = RagKeys(context.namespace, context.tenant, self._tag)
        page = await OntologyReader(self._redis).list(keys, limit=MOST_TERMS)
        return page.entries


def proposed(
    findings: Findings,
    entries: Sequence[TermEntry],
    sources: Sequence[Source],
    limit: int,
    min_confidence: float,
) -> list[Proposal]:
    """The proposals; files are moved only where sources are given."""
    wanted = moves(sources, findings)
    return propose(findings, Known(entries), limit, min_confidence, wanted)
