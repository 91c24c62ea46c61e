"""API for authors of handlers, tools and workflows: `from sluice.worker import JobContext`.

Each name is imported from the worker package on first use. Importing `sluice` alone does not import
the worker or its dependencies.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`, whose import takes 10 ms; type checkers know the name
if TYPE_CHECKING:
    from common.contracts.workflow.statuses import DraftState, ItemStatus, StepKind
    from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
    from worker.errors import JobError, NotNow, TransientError
    from worker.execution.context import JobContext, ThreadJobContext
    from worker.features.tools.tool import Call
    from worker.features.tools.toolbox import ToolBox
    from worker.features.workflows.context import StepContext
    from worker.features.workflows.errors import StepError
    from worker.features.workflows.output import StepItem, StepOutput
    from worker.features.workflows.registry import Workflows
    from worker.features.workflows.split_steps import SplitStep
    from worker.registry import Registry

__all__ = [
    "Call",
    "DraftState",
    "ItemStatus",
    "JobContext",
    "JobError",
    "NotNow",
    "Registry",
    "SplitStep",
    "StepContext",
    "StepDefinition",
    "StepError",
    "StepItem",
    "StepKind",
    "StepOutput",
    "ThreadJobContext",
    "ToolBox",
    "TransientError",
    "WorkflowDefinition",
    "Workflows",
]

_MODULES = {
    "Call": "worker.features.tools.tool",
    "DraftState": "common.contracts.workflow.statuses",
    "ItemStatus": "common.contracts.workflow.statuses",
    "JobContext": "worker.execution.context",
    "JobError": "worker.errors",
    "NotNow": "worker.errors",
    "Registry": "worker.registry",
    "SplitStep": "worker.features.workflows.split_steps",
    "StepContext": "worker.features.workflows.context",
    "StepDefinition": "common.features.workflows.definitions",
    "StepError": "worker.features.workflows.errors",
    "StepItem": "worker.features.workflows.output",
    "StepKind": "common.contracts.workflow.statuses",
    "StepOutput": "worker.features.workflows.output",
    "ThreadJobContext": "worker.execution.context",
    "ToolBox": "worker.features.tools.toolbox",
    "TransientError": "worker.errors",
    "WorkflowDefinition": "common.features.workflows.definitions",
    "Workflows": "worker.features.workflows.registry",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
