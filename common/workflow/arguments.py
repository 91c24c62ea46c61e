"""What several workflow operations are sent alike: who asks, what may start, what bounds it."""

from __future__ import annotations

import os
from typing import Final

from common.admission import Admission, admission_arguments
from common.scripts import Argument
from common.store import Fence
from common.workflow.types import Ids, Once, Running

_NO_FENCE: Final = Fence("", 0, "")


def once_arguments(once: Once) -> list[Argument]:
    """A token tells this call, if it is sent again, from other calls with the same key."""
    return [once.fingerprint, once.ttl_s, once.claim_ms, os.urandom(8).hex()]


def running_arguments(running: Running) -> list[Argument]:
    """Which execution a worker has, and which attempt of its core job."""
    return [*running[:3], *(running.fence or _NO_FENCE)]


def admitted_arguments(ids: Ids, admission: Admission) -> list[Argument]:
    """Names for a step that may start, and what bounds that."""
    return [*ids, admission.core_ttl_s, *admission_arguments(admission)]


def flag(value: bool) -> str:
    """A truth as the scripts read it."""
    return "1" if value else ""
