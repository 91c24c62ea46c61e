"""Settings of the BullMQ feature: gateway, worker, and shared."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from sluice.common.contracts.bullmq import DEFAULT_PREFIX
from sluice.common.features.bullmq.job import parse_name_map, parse_queue_names
from sluice.common.redis.addresses import validate_bullmq_url
from sluice.common.settings.base import SettingsPart, process_name


class SharedBullmqSettings(SettingsPart):
    """Settings of both gateway and worker."""

    bullmq_redis_url: str | None = Field(
        None,
        description="URL of the Redis with the BullMQ queues: one server or a Sentinel set. "
        "Unset: REDIS_URL.",
    )
    bullmq_prefix: str = Field(
        DEFAULT_PREFIX,
        min_length=1,
        max_length=128,
        description="Key prefix of BullMQ, as `prefix` in its Node classes.",
    )

    @field_validator("bullmq_redis_url")
    @classmethod
    def _no_cluster(cls, value: str | None) -> str | None:
        return None if value is None else validate_bullmq_url(value)


class BullmqGatewaySettings(SharedBullmqSettings):
    """Settings of the gateway for BullMQ queues."""

    bullmq_add_queues: str = Field(
        "",
        description="Queues that `/v1/bullmq/{queue}` may add to and read, comma-separated. "
        "Empty disables these endpoints.",
    )
    bullmq_max_unfinished: int = Field(
        10_000,
        ge=0,
        description="Reject new jobs with 429 while a queue has this many unfinished jobs; 0 "
        "disables the limit.",
    )

    @field_validator("bullmq_add_queues")
    @classmethod
    def _names_of_queues(cls, value: str) -> str:
        parse_queue_names(value)
        return value


class BullmqWorkerSettings(SharedBullmqSettings):
    """Settings of the worker for BullMQ queues."""

    bullmq_queues: str = Field(
        "", description="BullMQ queues that this worker consumes, comma-separated."
    )
    bullmq_name_map: str = Field(
        "",
        description="Handlers by BullMQ job name, such as `video-generation=plan,summarise=chat`. "
        "A job without an entry uses the handler of the same name.",
    )
    bullmq_concurrency: int = Field(
        10, ge=1, le=10_000, description="Maximum number of jobs running at once, per queue."
    )
    bullmq_lock_ms: int = Field(
        30_000, ge=1000, le=3_600_000, description="Milliseconds until the lock of a job expires."
    )
    bullmq_lock_renew_ms: int | None = Field(
        None,
        ge=100,
        le=1_800_000,
        description="Milliseconds between two renewals of a lock; at most half of "
        "`BULLMQ_LOCK_MS`. Unset: half of it.",
    )
    bullmq_stalled_interval_ms: int = Field(
        30_000,
        ge=100,
        le=3_600_000,
        description="Milliseconds between two checks for stalled jobs.",
    )
    bullmq_max_stalled: int = Field(
        1, ge=0, le=1000, description="Number of stalls that a job may have; one more fails it."
    )
    bullmq_rate_max: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Maximum number of jobs started per `BULLMQ_RATE_MS` and queue, across all "
        "workers with this setting; 0 disables the limit. A limit stored in the queue itself takes "
        "precedence.",
    )
    bullmq_rate_ms: int = Field(
        1000, ge=1, le=86_400_000, description="Milliseconds to which `BULLMQ_RATE_MAX` applies."
    )
    bullmq_drain_delay_s: float = Field(
        5.0, gt=0, le=60, description="Seconds that one fetch blocks while a queue is empty."
    )
    bullmq_worker_name: str = Field(
        default_factory=process_name,
        min_length=1,
        max_length=128,
        description="Worker name, stored as `processedBy` of the jobs. Default: host-pid.",
    )
    bullmq_shutdown_grace_s: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="Seconds that running jobs get to finish after SIGTERM; then they are "
        "released.",
    )
    bullmq_remove_on_complete: int = Field(
        -1,
        ge=-1,
        description="Number of completed jobs to keep, unless the job sets `removeOnComplete`; -1 "
        "keeps all.",
    )
    bullmq_remove_on_fail: int = Field(
        -1,
        ge=-1,
        description="Number of failed jobs to keep, unless the job sets `removeOnFail`; -1 keeps "
        "all.",
    )
    bullmq_retry_event: bool = Field(
        True, description="Whether a retry also adds a `retry` event to the queue's event stream."
    )
    bullmq_result_max_bytes: int = Field(
        1 << 20, ge=1024, le=512 << 20, description="Largest return value, in bytes of JSON."
    )

    #: The lock must survive at least one failed renewal.
    _RENEWALS_A_LOCK: ClassVar[int] = 2

    @field_validator("bullmq_queues")
    @classmethod
    def _names_of_queues(cls, value: str) -> str:
        parse_queue_names(value)
        return value

    @field_validator("bullmq_name_map")
    @classmethod
    def _names_of_handlers(cls, value: str) -> str:
        parse_name_map(value)
        return value

    @model_validator(mode="after")
    def _renewed_in_time(self) -> BullmqWorkerSettings:
        longest_ms = self.bullmq_lock_ms // self._RENEWALS_A_LOCK
        if self.bullmq_renew_every_ms > longest_ms:
            raise ValueError(
                f"BULLMQ_LOCK_RENEW_MS ({self.bullmq_lock_renew_ms}) must be at most half of "
                f"BULLMQ_LOCK_MS ({self.bullmq_lock_ms}); set it to {longest_ms} or less, or leave "
                "it unset"
            )
        return self

    @property
    def bullmq_renew_every_ms(self) -> int:
        """Milliseconds between two renewals of a lock."""
        return self.bullmq_lock_renew_ms or self.bullmq_lock_ms // self._RENEWALS_A_LOCK
