"""Named points in the code where a test can make the process die, as if by `kill -9`.

`SLUICE_CRASH_AT=after_begin` kills the process when it reaches that point, `after_begin:3` when it
reaches it for the third time. Outside of tests the variable is not set and a point costs the call
of an empty function.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import Enum
from typing import Final

CRASH_VARIABLE: Final = "SLUICE_CRASH_AT"


class CrashPoint(str, Enum):
    """Points at which a process may die without losing a job or ending it twice."""

    BEFORE_ENQUEUE = "before_enqueue"
    AFTER_ENQUEUE = "after_enqueue"
    BEFORE_CANCEL = "before_cancel"
    AFTER_CANCEL = "after_cancel"
    BEFORE_PROMOTE = "before_promote"
    AFTER_PROMOTE = "after_promote"
    AFTER_READ = "after_read"
    AFTER_BEGIN = "after_begin"
    AFTER_CLAIM = "after_claim"
    AFTER_EMIT = "after_emit"
    BEFORE_SAVE = "before_save"
    AFTER_SAVE = "after_save"
    AFTER_HANDLER = "after_handler"
    AFTER_FINISH = "after_finish"
    BEFORE_RETRY = "before_retry"
    AFTER_RETRY = "after_retry"
    BEFORE_RELEASE = "before_release"
    AFTER_RELEASE = "after_release"
    BEFORE_RENEW = "before_renew"
    AFTER_RENEW = "after_renew"
    AFTER_DELIVERY = "after_delivery"
    BEFORE_WORKFLOW_ANSWER = "before_workflow_answer"
    AFTER_EFFECT = "after_effect"
    AFTER_IMAGE_STAGE = "after_image_stage"
    BEFORE_IMAGE_RESULT = "before_image_result"
    AFTER_IMAGE_RESULT = "after_image_result"


_armed_point, _, _times = os.environ.get(CRASH_VARIABLE, "").partition(":")
_passes_left = int(_times or 1)


def _crash_when_due(point: CrashPoint) -> None:
    global _passes_left
    if point.value == _armed_point:
        _passes_left -= 1
        if _passes_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _ignore(point: CrashPoint) -> None:
    pass


#: Call it at each crash point. Does nothing in a process that is not armed.
reach: Final[Callable[[CrashPoint], None]] = _crash_when_due if _armed_point else _ignore
