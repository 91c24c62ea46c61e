"""Request and response models of `/v1/keys` and `/v1/whoami`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sluice.common.access.record import (
    LONGEST_LIFE_S,
    LONGEST_NAME,
    MOST_BURST,
    MOST_JOBS,
    MOST_PER_MIN,
    MOST_TOOLS,
    TOOL_NAME_PATTERN,
    AccessRecord,
    KeySpec,
)
from sluice.common.access.store import DEFAULT_ROTATION_GRACE_S, LONGEST_GRACE_S
from sluice.common.codec import TENANT_PATTERN, schema_pattern
from sluice.common.contracts.access import Scope
from sluice.common.contracts.jobs import Task

_KEY_ID = "k3x9q2ab"
_TENANT = schema_pattern(TENANT_PATTERN)
_TOOL = schema_pattern(TOOL_NAME_PATTERN)
ToolName = Annotated[str, Field(strict=True, pattern=_TOOL)]
EXAMPLE_KEY: dict[str, Any] = {
    "name": "shop front",
    "tenant": "shop",
    "scopes": [Scope.JOBS_WRITE.value, Scope.JOBS_READ.value],
    "expires_s": 7_776_000,
    "rate_per_min": 60,
    "burst": 10,
    "max_jobs": 20,
}


class KeyRequest(BaseModel):
    """A key to create."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE_KEY]})

    name: Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST_NAME)] = Field(
        description="Label of the key, printable characters."
    )
    tenant: Annotated[str, Field(strict=True, pattern=_TENANT)] | None = Field(
        None,
        description="The key creates and sees only jobs of this tenant. Without one it sees all "
        "jobs.",
    )
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))] = Field(
        default=[Scope.JOBS_WRITE, Scope.JOBS_READ],
        description="Allowed operations; `admin` includes all.",
    )
    expires_s: Annotated[float, Field(strict=True, ge=1, le=LONGEST_LIFE_S)] | None = Field(
        None, description="Seconds until the key expires. Default: never."
    )
    tasks: Annotated[list[Task], Field(min_length=1, max_length=len(Task))] | None = Field(
        None, description="Tasks the key may submit. Default: all."
    )
    tools: Annotated[list[ToolName], Field(max_length=MOST_TOOLS)] | None = Field(
        None,
        description="Tools its jobs may use. Default: all. An empty list: none.",
        examples=[["calculator"]],
    )
    rate_per_min: Annotated[float, Field(strict=True, ge=0.001, le=MOST_PER_MIN)] | None = Field(
        None, description="Jobs the key may submit per minute."
    )
    burst: Annotated[int, Field(strict=True, ge=1, le=MOST_BURST)] | None = Field(
        None, description="Jobs it may submit at once; requires a rate. Default: those of a minute."
    )
    max_jobs: Annotated[int, Field(strict=True, ge=1, le=MOST_JOBS)] | None = Field(
        None, description="Maximum number of its unfinished jobs."
    )

    def spec(self) -> KeySpec:
        """The key for the store; raises InvalidKeySpec for an invalid combination."""
        return KeySpec(
            name=self.name,
            tenant=self.tenant or "",
            scopes=tuple(scope.value for scope in self.scopes),
            expires_s=self.expires_s,
            tasks=None if self.tasks is None else tuple(task.value for task in self.tasks),
            tools=None if self.tools is None else tuple(dict.fromkeys(self.tools)),
            rate_per_min=self.rate_per_min,
            burst=self.burst,
            max_jobs=self.max_jobs,
        )


class RotateRequest(BaseModel):
    """How the secret of a key is rotated."""

    model_config = ConfigDict(extra="forbid")

    grace_s: Annotated[float, Field(strict=True, ge=0, le=LONGEST_GRACE_S)] = Field(
        float(DEFAULT_ROTATION_GRACE_S), description="Seconds the old secret stays valid."
    )


class LimitsView(BaseModel):
    """Limits of a key; null means unlimited."""

    rate_per_min: float | None = Field(examples=[60])
    burst: int | None = Field(examples=[10])
    max_jobs: int | None = Field(examples=[20])

    @classmethod
    def of(cls, record: AccessRecord | None) -> LimitsView:
        if record is None:
            return cls(rate_per_min=None, burst=None, max_jobs=None)
        burst = None if record.rate_per_min is None else record.effective_burst
        return cls(rate_per_min=record.rate_per_min, burst=burst, max_jobs=record.max_jobs)


class KeyView(BaseModel):
    """A key, without its secret."""

    key_id: str = Field(examples=[_KEY_ID])
    name: str = Field(examples=["shop front"])
    tenant: str | None = Field(examples=["shop"])
    scopes: list[Scope]
    tasks: list[Task] | None = Field(description="Null: all.", examples=[None])
    tools: list[str] | None = Field(description="Null: all.", examples=[None])
    limits: LimitsView
    created_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    expires_ts: int | None = Field(description="Unix milliseconds.", examples=[1767776000000])
    last_used_ts: int | None = Field(
        description="Unix milliseconds, accurate to about a minute.", examples=[1760000060000]
    )
    secrets: int = Field(
        description="Number of valid secrets: two during a rotation.", examples=[1]
    )

    @classmethod
    def of(cls, record: AccessRecord, last_used_ms: int | None, now_ms: int) -> KeyView:
        return cls(
            key_id=record.key_id,
            name=record.name,
            tenant=record.tenant or None,
            scopes=[scope for scope in Scope if scope.value in record.scopes],
            tasks=ordered_tasks(record.tasks),
            tools=None if record.tools is None else sorted(record.tools),
            limits=LimitsView.of(record),
            created_ts=record.created_ms,
            expires_ts=record.expires_ms,
            last_used_ts=last_used_ms,
            secrets=sum(
                secret.until_ms is None or secret.until_ms > now_ms for secret in record.secrets
            ),
        )


class IssuedKeyView(KeyView):
    """A key with its secret."""

    key: str = Field(
        description="The key itself. It is not stored and cannot be shown again.",
        examples=[f"sluice_{_KEY_ID}_…"],
    )


class KeyList(BaseModel):
    """All keys, oldest first."""

    items: list[KeyView]


class WhoAmI(BaseModel):
    """The caller of a request."""

    key_id: str | None = Field(description="Null without a key.", examples=[_KEY_ID])
    name: str = Field(examples=["shop front"])
    tenant: str | None = Field(examples=["shop"])
    scopes: list[Scope]
    tasks: list[Task] | None = Field(description="Null: all.", examples=[None])
    tools: list[str] | None = Field(description="Null: all.", examples=[None])
    limits: LimitsView
    expires_ts: int | None = Field(description="Unix milliseconds.", examples=[None])


def ordered_tasks(tasks: frozenset[str] | None) -> list[Task] | None:
    return None if tasks is None else [task for task in Task if task.value in tasks]
