"""Named places where a test may have the process die, as if by kill -9.

`SLUICE_CRASH_AT=after_begin` kills the process when it gets there, `after_begin:3` at the third
time. Unset, which is always so outside of tests, it costs a look at a global.
"""

from __future__ import annotations

import os
import signal
from enum import Enum
from typing import Final

CRASH_VARIABLE: Final = "SLUICE_CRASH_AT"


class CrashPoint(str, Enum):
    """Where a process may die and nothing may be lost or doubled."""

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


_wanted, _, _times = os.environ.get(CRASH_VARIABLE, "").partition(":")
#: Whether this process is to die somewhere at all.
ARMED: Final = bool(_wanted)
_left = int(_times or 1)


def reach(point: CrashPoint) -> None:
    """Die here, if this is the place and the time."""
    global _left
    if point.value == _wanted:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
