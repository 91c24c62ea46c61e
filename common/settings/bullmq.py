"""Settings of the BullMQ door: the gateway's part, the worker's part, and what both must know."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from common.contracts.bullmq import DEFAULT_PREFIX
from common.features.bullmq.job import parse_name_map, parse_queue_names
from common.redis.addresses import validate_bullmq_url
from common.settings.derived import SettingsPart, process_name


class SharedBullmqSettings(SettingsPart):
    """What gateway and worker must agree on."""

    bullmq_redis_url: str | None = Field(
        None,
        description="URL of the Redis that BullMQ's queues are on, one server or a Sentinel set. "
        "Unset: the main one.",
    )
    bullmq_prefix: str = Field(
        DEFAULT_PREFIX,
        min_length=1,
        max_length=128,
        description="How BullMQ's keys begin; `prefix` of its Node classes.",
    )

    @field_validator("bullmq_redis_url")
    @classmethod
    def _no_cluster(cls, value: str | None) -> str | None:
        return None if value is None else validate_bullmq_url(value)


class BullmqGatewaySettings(SharedBullmqSettings):
    """Which queues clients may feed."""

    bullmq_add_queues: str = Field(
        "",
        description="Queues that `/v1/bullmq/{queue}` may add to and read, separated by commas. "
        "Empty: there is no such door.",
    )
    bullmq_max_unfinished: int = Field(
        10_000,
        ge=0,
        description="Jobs of a queue that have not ended from which on a POST gets 429; 0: any "
        "number.",
    )

    @field_validator("bullmq_add_queues")
    @classmethod
    def _names_of_queues(cls, value: str) -> str:
        parse_queue_names(value)
        return value


class BullmqWorkerSettings(SharedBullmqSettings):
    """Which queues are worked on, and on which terms."""

    bullmq_queues: str = Field(
        "", description="Queues of BullMQ that this worker takes jobs from, separated by commas."
    )
    bullmq_name_map: str = Field(
        "",
        description="Names of BullMQ's jobs to names of handlers, such as "
        "`video-generation=plan,summarise=chat`. Without an entry a name is its own handler's.",
    )
    bullmq_concurrency: int = Field(
        10, ge=1, le=10_000, description="Most of their jobs running at once, a queue."
    )
    bullmq_lock_ms: int = Field(
        30_000, ge=1000, le=3_600_000, description="Milliseconds a job's lock is good for."
    )
    bullmq_lock_renew_ms: int = Field(
        15_000, ge=100, le=1_800_000, description="Milliseconds after which it is renewed."
    )
    bullmq_stalled_interval_ms: int = Field(
        30_000,
        ge=100,
        le=3_600_000,
        description="Milliseconds between looks for jobs whose worker has died.",
    )
    bullmq_max_stalled: int = Field(
        1, ge=0, le=1000, description="How often a job may lose its worker before it fails."
    )
    bullmq_rate_max: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Most jobs begun in `BULLMQ_RATE_MS`, a queue, by all workers that say so; "
        "0: no limit of ours. A limit that the queue itself has goes before.",
    )
    bullmq_rate_ms: int = Field(
        1000, ge=1, le=86_400_000, description="Milliseconds that `BULLMQ_RATE_MAX` is for."
    )
    bullmq_drain_delay_s: float = Field(
        5.0, gt=0, le=60, description="Seconds that a look for new jobs waits for one."
    )
    bullmq_worker_name: str = Field(
        default_factory=process_name,
        min_length=1,
        max_length=128,
        description="`processedBy` of the jobs. Default: host-pid.",
    )
    bullmq_shutdown_grace_s: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="Seconds that running jobs get to finish after SIGTERM; then they are handed "
        "back.",
    )
    bullmq_remove_on_complete: int = Field(
        -1, ge=-1, description="Completed jobs kept, of those that do not say; -1: all."
    )
    bullmq_remove_on_fail: int = Field(
        -1, ge=-1, description="Failed jobs kept, of those that do not say; -1: all."
    )
    bullmq_retry_event: bool = Field(
        True, description="Whether a job that is tried again also leaves a `retry` event."
    )
    bullmq_result_max_bytes: int = Field(
        1 << 20, ge=1024, le=512 << 20, description="Longest return value, in bytes of JSON."
    )

    #: The lock must outlive at least one renewal that fails.
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
        if self.bullmq_lock_renew_ms * self._RENEWALS_A_LOCK > self.bullmq_lock_ms:
            raise ValueError(
                f"BULLMQ_LOCK_RENEW_MS ({self.bullmq_lock_renew_ms}) must be at most half of "
                f"BULLMQ_LOCK_MS ({self.bullmq_lock_ms})"
            )
        return self
