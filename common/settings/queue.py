"""Settings of lanes, which gateways and workers must agree on."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field, field_validator

from common.contracts.queue import TENANT_LANE_PREFIX, TENANT_LANES_MAX, Lane
from common.settings.derived import SettingsPart, split_names


class LaneSettings(SettingsPart):
    """Which lanes there are beside the normal one."""

    lanes: str = Field(
        "",
        description="Lanes beside the normal one: `high`, `low` or `high,low`. Jobs may ask for "
        "one of them; for 4 messages of the normal one, workers take 8 high ones and 1 low one. "
        "Workers must have every lane that a gateway has.",
    )

    tenant_lanes: int = Field(
        0,
        ge=0,
        le=TENANT_LANES_MAX,
        description="Lanes that tenants' jobs are spread over, so that no tenant waits for the end "
        "of another's backlog; 0 for none. Workers must have as many as the gateways.",
    )

    @field_validator("lanes")
    @classmethod
    def _known_lanes(cls, value: str) -> str:
        for name in split_names(value):
            if name not in (Lane.HIGH.value, Lane.LOW.value):
                raise ValueError(f"{name!r} is no lane; write high, low, or high,low")
        return value

    @property
    def lane_names(self) -> tuple[str, ...]:
        """Each once, the urgent one first, then those of tenants."""
        wanted = split_names(self.lanes)
        named = [lane.value for lane in Lane if lane.value in wanted]
        tenants = [f"{TENANT_LANE_PREFIX}{number}" for number in range(self.tenant_lanes)]
        return (*named, *tenants)


class TenantSettings(SettingsPart):
    """How tenants share the workers."""

    tenant_weights: str = Field(
        "",
        description="Over how many of TENANT_LANES the jobs of a tenant are spread, such as "
        "`acme:4,beta:2`: so much of the workers it gets beside others. All others: one.",
    )

    @field_validator("tenant_weights")
    @classmethod
    def _known_weights(cls, value: str) -> str:
        parse_weights(value)
        return value


@lru_cache(maxsize=8)
def parse_weights(value: str) -> dict[str, int]:
    """`acme:4,beta:2`, taken apart; a ValueError says what is wrong."""
    found: dict[str, int] = {}
    for part in split_names(value):
        tenant, separator, weight = part.rpartition(":")
        if not separator or not tenant or not weight.isdecimal():
            raise ValueError(f"{part!r} is no tenant and weight; write acme:4,beta:2")
        if not 1 <= int(weight) <= TENANT_LANES_MAX:
            raise ValueError(f"the weight of {tenant} must be 1 to {TENANT_LANES_MAX}")
        found[tenant] = int(weight)
    return found


class ReplicationSettings(SettingsPart):
    """How many replicas must have a change before a client is told of it."""

    wait_replicas: int = Field(
        0,
        ge=0,
        le=100,
        description="Replicas that must have a change before the client is told that it was made; "
        "fewer in time: 503 `not_replicated`. 0: the master's word is enough.",
    )
    wait_timeout_ms: int = Field(
        1000, ge=1, le=10_000, description="Milliseconds that they get for it."
    )

    @property
    def wait_s(self) -> float:
        """Seconds that an answer may be held back for replicas."""
        return self.wait_timeout_ms / 1000 if self.wait_replicas else 0.0
