"""The handlers that come with Sluice, one for each task of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.workflow import memory_first
from worker.agent.types import AgentLimits
from worker.embedding.choose import choose
from worker.handlers import chat, code, embed, plan, rag, tool
from worker.images import service as image_service
from worker.model.checker import Checker
from worker.model.client import ModelClient
from worker.model.watch import MODEL_TASKS
from worker.rag.library import Library
from worker.registry import Registry
from worker.tools import builtin, mcp_config
from worker.tools.builtin.search_documents import search_tool
from worker.tools.mcp_servers import McpServers
from worker.webhooks.service import Webhooks
from worker.workflows import service as workflow_service
from worker.workflows.memory_first.analytics import AnalyticsStep
from worker.workflows.memory_first.applying import ApplyStep
from worker.workflows.memory_first.extract import ExtractStep
from worker.workflows.memory_first.proposals import ProposalsStep
from worker.workflows.memory_first.sources import SourcesStep
from worker.workflows.memory_first.summarize import SummarizeStep

if TYPE_CHECKING:
    from common.settings import WorkerSettings


def register(registry: Registry, settings: WorkerSettings) -> None:
    """Let `registry` do every task, with what `settings` say."""
    _register_tools(registry, settings)
    model = ModelClient(settings)
    registry.add_service(model)
    _register_model_tasks(registry, settings, model)
    embedder = choose(settings, model)
    registry.add_service(embedder)
    embed.register(registry, embedder)
    library = rag.register(registry, embedder, model, settings.rag_max_documents)
    registry.toolbox.put(search_tool(library))
    _register_memory_first(registry, settings, model, library)
    workflow_service.register(registry, settings.workflow_reconcile_s, library)
    registry.add_service(Webhooks(settings))
    image_service.register(registry, settings)


def _register_memory_first(
    registry: Registry, settings: WorkerSettings, model: ModelClient, library: Library
) -> None:
    proposals, apply = ProposalsStep(), ApplyStep(library)
    registry.add_service(proposals)
    registry.add_service(apply)
    registry.workflows.add(
        memory_first.DEFINITION,
        {
            memory_first.SOURCES: SourcesStep(settings.workflow_sources_root),
            memory_first.INDEX_EXTRACT: ExtractStep(),
            memory_first.SUMMARIZE: SummarizeStep(model),
            memory_first.PROPOSALS: proposals,
            memory_first.APPLY: apply,
            memory_first.ANALYTICS: AnalyticsStep(library),
        },
    )


def _register_model_tasks(registry: Registry, settings: WorkerSettings, model: ModelClient) -> None:
    checker = Checker()
    registry.add_service(checker)
    chat.register(registry, model, checker, AgentLimits.of(settings))
    plan.register(registry, model)
    code.register(registry, model, checker)
    ours = {task: registry.resolve(task) for task in MODEL_TASKS}
    # A handler of the user's own in place of one of these may not need the model.
    model.tasks = lambda: frozenset(
        task for task, handler in ours.items() if registry.resolve(task) is handler
    )


def _register_tools(registry: Registry, settings: WorkerSettings) -> None:
    toolbox = registry.toolbox
    toolbox.configure(settings.tools, settings.tool_timeout_s, settings.tool_output_bytes)
    builtin.register_tools(toolbox)
    if settings.mcp_servers:
        mcp_config.check_package()
        servers = mcp_config.load(settings.mcp_servers)
        registry.add_service(McpServers(servers, toolbox))
    tool.register(registry)
