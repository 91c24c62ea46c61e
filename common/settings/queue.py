"""Settings of the gateway for tenants and replication."""

from __future__ import annotations

from functools import lru_cache

from pydantic import Field, field_validator

from sluice.common.contracts.queue import TENANT_LANES_MAX
from sluice.common.settings.base import SettingsPart, split_names


class TenantSettings(SettingsPart):
    """Fair sharing of workers between tenants."""

    tenant_weights: str = Field(
        "",
        description="Number of TENANT_LANES over which a tenant's jobs are spread, such as "
        "`acme:4,beta:2`: its share of the workers relative to other tenants. Default: 1.",
    )

    @field_validator("tenant_weights")
    @classmethod
    def _known_weights(cls, value: str) -> str:
        parse_weights(value)
        return value


@lru_cache(maxsize=8)
def parse_weights(value: str) -> dict[str, int]:
    """Parse `acme:4,beta:2`; raises ValueError."""
    found: dict[str, int] = {}
    for part in split_names(value):
        tenant, separator, weight = part.rpartition(":")
        if not separator or not tenant or not weight.isdecimal():
            raise ValueError(f"{part!r} is not a tenant and weight; write acme:4,beta:2")
        if not 1 <= int(weight) <= TENANT_LANES_MAX:
            raise ValueError(f"the weight of {tenant} must be 1 to {TENANT_LANES_MAX}")
        found[tenant] = int(weight)
    return found


class ReplicationSettings(SettingsPart):
    """Number of replicas that must confirm a change before the response is sent."""

    wait_replicas: int = Field(
        0,
        ge=0,
        le=100,
        description="Number of replicas that must confirm a change before the response is sent; "
        "otherwise 503 `not_replicated`. 0 disables waiting.",
    )
    wait_timeout_ms: int = Field(
        1000, ge=1, le=10_000, description="Milliseconds to wait for the replicas."
    )

    @property
    def wait_s(self) -> float:
        """Longest delay of a response, in seconds; 0 if no replica is waited for."""
        return self.wait_timeout_ms / 1000 if self.wait_replicas else 0.0
