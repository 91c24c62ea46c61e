"""Fairness between tenants: each one's jobs wait in a lane of their own, or in a few.

Tenants are spread over a fixed number of lanes by their names, so two may share one; while several
lanes have jobs, workers take turns, and a tenant gets as many turns as it has lanes.
"""

from __future__ import annotations

import itertools
from zlib import crc32

from common.contracts.lanes import TENANT_LANE
from common.lane_settings import weights_in
from common.settings import GatewaySettings

#: Which of its lanes a tenant's next job goes to: any order will do.
_turn = itertools.count()


def lane_of(settings: GatewaySettings, tenant: str) -> str:
    """The lane of a tenant's next job; empty for the normal one, where tenants have none."""
    lanes = settings.tenant_lanes
    if not lanes:
        return ""
    first = crc32(tenant.encode())
    weight = min(weights_in(settings.tenant_weights).get(tenant, 1), lanes)
    return f"{TENANT_LANE}{(first + next(_turn) % weight) % lanes}"
