"""Settings of lanes, which gateways and workers must agree on."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from common.contracts.lanes import TENANT_LANES_MAX, Lane
from common.derived_settings import DerivedLanes, names_of


class LaneSettings(DerivedLanes, BaseSettings):
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
        for name in names_of(value):
            if name not in (Lane.HIGH.value, Lane.LOW.value):
                raise ValueError(f"{name!r} is no lane; write high, low, or high,low")
        return value


class TenantSettings(BaseSettings):
    """How tenants share the workers."""

    tenant_weights: str = Field(
        "",
        description="Over how many of TENANT_LANES the jobs of a tenant are spread, such as "
        "`acme:4,beta:2`: so much of the workers it gets beside others. All others: one.",
    )

    @field_validator("tenant_weights")
    @classmethod
    def _known_weights(cls, value: str) -> str:
        weights_in(value)
        return value


@lru_cache(maxsize=8)
def weights_in(value: str) -> dict[str, int]:
    """`acme:4,beta:2`, taken apart; a ValueError says what is wrong."""
    found: dict[str, int] = {}
    for part in names_of(value):
        tenant, separator, weight = part.rpartition(":")
        if not separator or not tenant or not weight.isdecimal():
            raise ValueError(f"{part!r} is no tenant and weight; write acme:4,beta:2")
        if not 1 <= int(weight) <= TENANT_LANES_MAX:
            raise ValueError(f"the weight of {tenant} must be 1 to {TENANT_LANES_MAX}")
        found[tenant] = int(weight)
    return found
