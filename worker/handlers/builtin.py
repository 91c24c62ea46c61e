"""The built-in features. A new feature is one more line in `FEATURES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sluice.worker.features.images import service as images
from sluice.worker.features.model.availability import MODEL_TASKS
from sluice.worker.features.shared import SharedServices
from sluice.worker.features.tools import mcp
from sluice.worker.features.webhooks import service as webhooks
from sluice.worker.features.workflows import service as workflows
from sluice.worker.features.workflows.memory_first import workflow as memory_first
from sluice.worker.handlers import chat, code, embed, plan, rag, tool
from sluice.worker.registry import Handler, Registry

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings

#: Adds the handlers, tools, workflows and services of a feature that the settings enable.
RegisterFeature = Callable[[Registry, "WorkerSettings", SharedServices], None]

#: In the order in which the worker starts their services.
FEATURES: Final[tuple[RegisterFeature, ...]] = (
    tool.register,
    mcp.register,
    chat.register,
    plan.register,
    code.register,
    embed.register,
    rag.register,
    memory_first.register,
    workflows.register,
    webhooks.register,
    images.register,
)


def register(registry: Registry, settings: WorkerSettings) -> None:
    """Add every feature; raises SettingsError if one of them cannot work with `settings`."""
    builtin: dict[str, Handler] = {}

    def model_tasks() -> frozenset[str]:
        # A user's handler that replaces one of these may not need the model.
        return frozenset(
            task for task, handler in builtin.items() if registry.resolve(task) is handler
        )

    shared = SharedServices.create(settings, model_tasks)
    for service in shared.all():
        registry.add_service(service)
    for register_feature in FEATURES:
        register_feature(registry, settings, shared)
    builtin.update((task, registry.resolve(task)) for task in MODEL_TASKS)
