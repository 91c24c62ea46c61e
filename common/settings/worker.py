"""Settings of the worker."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from common.contracts.jobs import LEASE_MAX_MS, TTL_MAX_S, TTL_MIN_S
from common.jobs.limits import parse_limits
from common.redis.addresses import check_for_cluster
from common.settings.base import CommonSettings
from common.settings.bullmq import BullmqWorkerSettings
from common.settings.derived import process_name, split_names
from common.settings.images import ImageWorkerSettings
from common.settings.models import ModelSettings
from common.settings.workflows import WorkflowWorkerSettings

_DAY_S = 24 * 3600


class WorkerSettings(
    ModelSettings,
    BullmqWorkerSettings,
    ImageWorkerSettings,
    WorkflowWorkerSettings,
    CommonSettings,
):
    """Settings of `python -m worker`."""

    service: ClassVar[str] = "sluice-worker"

    consumer: str = Field(
        default_factory=process_name,
        min_length=1,
        description="Name within the group; keep it stable over restarts. Default: host-pid.",
    )
    block_ms: int = Field(
        1000, ge=1, le=60_000, description="Milliseconds a read waits for new messages."
    )
    count: int = Field(16, ge=1, le=1000, description="Most messages taken by one read.")
    max_inflight: int = Field(
        16, ge=1, le=10_000, description="Most jobs running at once in this process."
    )
    default_ttl_s: int = Field(
        _DAY_S,
        ge=TTL_MIN_S,
        le=TTL_MAX_S,
        description="Seconds a job is kept whose hash names no sane `ttl_s`.",
    )
    lease_ms: int = Field(
        30_000,
        ge=300,
        le=LEASE_MAX_MS,
        description="Milliseconds after which a silent worker's job may be taken over; "
        "renewed at a third of it.",
    )
    max_attempts: int = Field(
        5,
        ge=1,
        le=1000,
        description="How often a job is begun, after crashes of its workers and after errors that "
        "pass, before it ends in error. Request and handler may say otherwise.",
    )
    job_timeout_s: float = Field(
        3600.0,
        ge=0,
        le=TTL_MAX_S,
        description="Seconds an attempt may run; 0 for no limit. Request and handler may say "
        "otherwise.",
    )
    retry_backoff_s: float = Field(
        1.0, ge=0, le=3600, description="Seconds before the second attempt; doubles each time."
    )
    retry_backoff_max_s: float = Field(
        60.0, ge=0, le=86_400, description="Longest time between two attempts, in seconds."
    )
    cancel_grace_s: float = Field(
        1.0,
        ge=0,
        le=3600,
        description="Seconds a handler gets to stop by itself when its job is canceled; then its "
        "task is canceled.",
    )
    task_limits: str = Field(
        "",
        description="Most jobs of a task at once in this process, such as `chat:1,embed:4`; in "
        "`chat+plan+code:1` the tasks share the places.",
    )
    task_limits_global: str = Field(
        "",
        description="The same across all workers, in each partition. Every worker should be given "
        "the same value.",
    )
    audit_every_s: float = Field(
        300.0,
        ge=0,
        le=TTL_MAX_S,
        allow_inf_nan=False,
        description="Seconds between audits of all jobs, by one worker at a time; 0 for none.",
    )
    shutdown_grace_s: float = Field(
        25.0,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds that running jobs get to finish after SIGTERM.",
    )
    heartbeat_s: float = Field(
        5.0, gt=0, le=300, description="Seconds between a worker's signs of life and its numbers."
    )
    echo_delay_ms: int = Field(
        0, ge=0, le=3_600_000, description="Milliseconds the echo handler pretends to work."
    )
    worker_handlers: str = Field(
        "", description="Modules with handlers to load, separated by commas."
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
