"""Takes jobs from the queue and runs them.

The names below are the API for authors of handlers, tools and workflows: `from sluice.worker import
JobContext`. Each is imported on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`, whose import takes 10 ms; type checkers know the name
if TYPE_CHECKING:
    from sluice.common.contracts.workflow.statuses import DraftState, ItemStatus, StepKind
    from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition
    from sluice.worker.errors import JobError, NotNow, TransientError
    from sluice.worker.execution.context import JobContext, ThreadJobContext
    from sluice.worker.features.tools.tool import Call
    from sluice.worker.features.tools.toolbox import ToolBox
    from sluice.worker.features.workflows.context import StepContext
    from sluice.worker.features.workflows.errors import StepError
    from sluice.worker.features.workflows.output import StepItem, StepOutput
    from sluice.worker.features.workflows.registry import Workflows
    from sluice.worker.features.workflows.split_steps import SplitStep
    from sluice.worker.registry import Registry

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
    "Call": "sluice.worker.features.tools.tool",
    "DraftState": "sluice.common.contracts.workflow.statuses",
    "ItemStatus": "sluice.common.contracts.workflow.statuses",
    "JobContext": "sluice.worker.execution.context",
    "JobError": "sluice.worker.errors",
    "NotNow": "sluice.worker.errors",
    "Registry": "sluice.worker.registry",
    "SplitStep": "sluice.worker.features.workflows.split_steps",
    "StepContext": "sluice.worker.features.workflows.context",
    "StepDefinition": "sluice.common.features.workflows.definitions",
    "StepError": "sluice.worker.features.workflows.errors",
    "StepItem": "sluice.worker.features.workflows.output",
    "StepKind": "sluice.common.contracts.workflow.statuses",
    "StepOutput": "sluice.worker.features.workflows.output",
    "ThreadJobContext": "sluice.worker.execution.context",
    "ToolBox": "sluice.worker.features.tools.toolbox",
    "TransientError": "sluice.worker.errors",
    "WorkflowDefinition": "sluice.common.features.workflows.definitions",
    "Workflows": "sluice.worker.features.workflows.registry",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
