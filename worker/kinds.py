"""What jobs are counted by where places are few: their task, or a tool of ours with its own places.

An image takes a core for a second, where other jobs of the task `tool` wait for somebody else: a
hundred of them must not keep these from running, nor jobs of other tasks.
"""

from __future__ import annotations

from typing import Final

from common import codec
from common.contracts.images import IMAGE_TOOL
from common.contracts.jobs import Task
from common.contracts.workflow import StepPayload

#: Tools of ours that have places of their own, and the task whose places they need as well.
TASK_OF: Final = {IMAGE_TOOL: Task.TOOL.value}

_TOOL_TASK: Final = Task.TOOL.value
_TOOL: Final = StepPayload.TOOL.value
_MARKS: Final = tuple((kind.encode(), kind) for kind in TASK_OF)


def kind_of(task: str, payload: bytes) -> str:
    """The kind of a job, from what its message says."""
    if task != _TOOL_TASK:
        return task
    for mark, kind in _MARKS:
        if mark in payload and codec.payload_object(payload).get(_TOOL) == kind:
            return kind
    return task
