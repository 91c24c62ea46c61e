"""Lanes: streams beside the queue, for jobs that are more or less urgent, and for tenants."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Lane(str, Enum):
    """How urgent a job is: each lane has a stream of its own, the normal one's is the queue."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


#: Lanes of tenants, so that no tenant's backlog is another's: `tenants.0` and so on.
TENANT_LANE: Final = "tenants."
TENANT_LANES_MAX: Final = 16
#: Every lane there can be beside the normal one.
OTHER_LANES: Final = (
    Lane.HIGH.value,
    Lane.LOW.value,
    *(f"{TENANT_LANE}{number}" for number in range(TENANT_LANES_MAX)),
)
