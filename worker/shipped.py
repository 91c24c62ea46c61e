"""The handlers that come with Sluice, one for each task of the contract.

Only what has to run from the start is imported here. A handler, a tool, a step of a workflow is
imported by the first job that needs it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from common.contracts.jobs import Task
from common.workflow import memory_first
from worker.embedding.choose import choose
from worker.images import service as image_service
from worker.late import add_late
from worker.model.checker import Checker
from worker.model.client import ModelClient
from worker.model.watch import MODEL_TASKS
from worker.rag.library import Library
from worker.registry import Registry
from worker.tools import builtin
from worker.webhooks.service import Webhooks
from worker.workflows import service as workflow_service
from worker.workflows.memory_first.steps import MemoryFirstSteps

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from worker.embedding.types import Embedder
    from worker.tools.tool import Tool


def register(registry: Registry, settings: WorkerSettings) -> None:
    """Let `registry` do every task, with what `settings` say."""
    _register_tools(registry, settings)
    model = ModelClient(settings)
    registry.add_service(model)
    _register_model_tasks(registry, settings, model)
    embedder = choose(settings, model)
    registry.add_service(embedder)
    add_late(registry, Task.EMBED.value, partial(_embed, embedder=embedder))
    library = Library(embedder, settings.rag_max_documents)
    registry.add_service(library)
    add_late(registry, Task.RAG.value, partial(_rag, library=library, model=model))
    registry.toolbox.put_late("search_documents", partial(_search_tool, library))
    steps = MemoryFirstSteps(settings.workflow_sources_root, model, library)
    registry.add_service(steps)
    registry.workflows.add(memory_first.DEFINITION, steps.by_name())
    workflow_service.register(registry, settings.workflow_reconcile_s, library)
    registry.add_service(Webhooks(settings))
    image_service.register(registry, settings)


def _register_model_tasks(registry: Registry, settings: WorkerSettings, model: ModelClient) -> None:
    checker = Checker()
    registry.add_service(checker)
    chat = partial(_chat, settings=settings, model=model, checker=checker)
    add_late(registry, Task.CHAT.value, chat)
    add_late(registry, Task.PLAN.value, partial(_plan, model=model))
    add_late(registry, Task.CODE.value, partial(_code, model=model, checker=checker))
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
        from worker.tools import mcp_config
        from worker.tools.mcp_servers import McpServers

        mcp_config.check_package()
        servers = mcp_config.load(settings.mcp_servers)
        registry.add_service(McpServers(servers, toolbox))
    add_late(registry, Task.TOOL.value, _tool)


# -- imported by their first job ------------------------------------------------------------------


def _chat(
    registry: Registry, settings: WorkerSettings, model: ModelClient, checker: Checker
) -> None:
    from worker.agent.types import AgentLimits
    from worker.handlers import chat

    chat.register(registry, model, checker, AgentLimits.of(settings))


def _plan(registry: Registry, model: ModelClient) -> None:
    from worker.handlers import plan

    plan.register(registry, model)


def _code(registry: Registry, model: ModelClient, checker: Checker) -> None:
    from worker.handlers import code

    code.register(registry, model, checker)


def _embed(registry: Registry, embedder: Embedder) -> None:
    from worker.handlers import embed

    embed.register(registry, embedder)


def _rag(registry: Registry, library: Library, model: ModelClient) -> None:
    from worker.handlers import rag

    rag.add(registry, library, model)


def _tool(registry: Registry) -> None:
    from worker.handlers import tool

    tool.register(registry)


def _search_tool(library: Library) -> Tool:
    from worker.tools.builtin.search_documents import search_tool

    return search_tool(library)
