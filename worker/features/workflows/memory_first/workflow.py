"""Registers the workflow `memory_first` with the implementation of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.common.features.workflows.memory_first import (
    ANALYTICS,
    APPLY,
    DEFINITION,
    INDEX_EXTRACT,
    PROPOSALS,
    SOURCES,
    SUMMARIZE,
)
from sluice.worker.features.workflows.memory_first.steps.analytics import AnalyticsStep
from sluice.worker.features.workflows.memory_first.steps.apply import ApplyStep
from sluice.worker.features.workflows.memory_first.steps.extract import ExtractStep
from sluice.worker.features.workflows.memory_first.steps.proposals import ProposalsStep
from sluice.worker.features.workflows.memory_first.steps.sources import SourcesStep
from sluice.worker.features.workflows.memory_first.steps.summarize import SummarizeStep

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices
    from sluice.worker.registry import Registry


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    proposals, apply = ProposalsStep(), ApplyStep(shared.rag)
    registry.add_service(proposals)
    registry.add_service(apply)
    registry.workflows.add(
        DEFINITION,
        {
            SOURCES: SourcesStep(settings.workflow_sources_root),
            INDEX_EXTRACT: ExtractStep(),
            SUMMARIZE: SummarizeStep(shared.model),
            PROPOSALS: proposals,
            APPLY: apply,
            ANALYTICS: AnalyticsStep(shared.rag),
        },
    )
