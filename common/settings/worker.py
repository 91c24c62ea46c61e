"""Settings of the worker."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from sluice.common.contracts.jobs import LEASE_MAX_MS, TTL_MAX_S, TTL_MIN_S
from sluice.common.jobs.limits import parse_limits
from sluice.common.redis.addresses import check_for_cluster
from sluice.common.settings.base import CommonSettings, process_name, split_names
from sluice.common.settings.bullmq import BullmqWorkerSettings
from sluice.common.settings.images import ImageWorkerSettings
from sluice.common.settings.models import ModelSettings
from sluice.common.settings.workflows import WorkflowWorkerSettings

_DAY_S = 24 * 3600


class WorkerSettings(
    ModelSettings,
    BullmqWorkerSettings,
    ImageWorkerSettings,
    WorkflowWorkerSettings,
    CommonSettings,
):
    """Settings of `python -m sluice.worker`."""

    service: ClassVar[str] = "sluice-worker"

    consumer: str = Field(
        default_factory=process_name,
        min_length=1,
        description="Consumer name within the group; keep it stable across restarts. Default: "
        "host-pid.",
    )
    block_ms: int = Field(
        1000,
        ge=1,
        le=60_000,
        description="Milliseconds that a read blocks for new messages; must be less than LEASE_MS.",
    )
    count: int = Field(
        16, ge=1, le=1000, description="Maximum number of messages fetched per read."
    )
    max_inflight: int = Field(
        16,
        ge=1,
        le=10_000,
        description="Slots: maximum number of jobs running at once in this process.",
    )
    default_ttl_s: int = Field(
        _DAY_S,
        ge=TTL_MIN_S,
        le=TTL_MAX_S,
        description="Seconds a job is kept if its hash has no valid `ttl_s`.",
    )
    lease_ms: int = Field(
        30_000,
        ge=300,
        le=LEASE_MAX_MS,
        description="Milliseconds until the lease of an attempt expires and another worker may "
        "take the job over. The worker renews it after a third of that time.",
    )
    max_attempts: int = Field(
        5,
        ge=1,
        le=1000,
        description="Maximum number of attempts of a job, counting worker crashes and retryable "
        "errors; then it ends in error. Request and handler may override it.",
    )
    job_timeout_s: float = Field(
        3600.0,
        ge=0,
        le=TTL_MAX_S,
        description="Seconds an attempt may run; 0 disables the limit. Request and handler may "
        "override it.",
    )
    retry_backoff_s: float = Field(
        1.0,
        ge=0,
        le=3600,
        description="Seconds before the second attempt; doubles with each further attempt.",
    )
    retry_backoff_max_s: float = Field(
        60.0, ge=0, le=86_400, description="Longest delay between two attempts, in seconds."
    )
    cancel_grace_s: float = Field(
        1.0,
        ge=0,
        le=3600,
        description="Seconds a handler gets to stop after its job is canceled; then its asyncio "
        "task is canceled.",
    )
    task_limits: str = Field(
        "",
        description="Maximum number of jobs of a task running at once in this process, such as "
        "`chat:1,embed:4`; the tasks in `chat+plan+code:1` share one limit.",
    )
    task_limits_global: str = Field(
        "",
        description="Like TASK_LIMITS, across all workers; with several partitions, in each of "
        "them. All workers should have the same value.",
    )
    audit_every_s: float = Field(
        300.0,
        ge=0,
        le=TTL_MAX_S,
        allow_inf_nan=False,
        description="Seconds between two integrity checks of all jobs, run by one worker at a "
        "time; 0 disables them.",
    )
    shutdown_grace_s: float = Field(
        25.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds that running jobs get to finish after SIGTERM; then they are "
        "released.",
    )
    heartbeat_s: float = Field(
        5.0, gt=0, le=300, description="Seconds between two heartbeats of a worker."
    )
    echo_delay_ms: int = Field(
        0, ge=0, le=3_600_000, description="Milliseconds that the echo handler waits per job."
    )
    worker_handlers: str = Field(
        "", description="Python modules with handlers to import, comma-separated."
    )

    @model_validator(mode="after")
    def _fit_for_a_cluster(self) -> WorkerSettings:
        queues = self.bullmq_queues
        check_for_cluster(self.redis_url, self.queue_partitions, self.bullmq_redis_url, queues)
        return self

    @field_validator("task_limits", "task_limits_global")
    @classmethod
    def _known_tasks(cls, value: str) -> str:
        parse_limits(value)
        return value

    @property
    def handler_modules(self) -> list[str]:
        return split_names(self.worker_handlers)

    @model_validator(mode="after")
    def _read_shorter_than_lease(self) -> WorkerSettings:
        if self.block_ms >= self.lease_ms:
            raise ValueError(
                f"BLOCK_MS ({self.block_ms}) must be shorter than LEASE_MS ({self.lease_ms}); "
                "lower BLOCK_MS or raise LEASE_MS"
            )
        return self
