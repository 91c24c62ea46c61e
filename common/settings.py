"""One documented, validated settings object for each process, read from the environment."""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettings

from common.bullmq_settings import BullmqGatewaySettings, BullmqWorkerSettings
from common.contracts.jobs import (
    DEAD_LETTER_STREAM,
    INDEX_MAX,
    LEASE_MAX_MS,
    PARTITIONS_MAX,
    QUEUE_STREAM,
    TTL_MAX_S,
    TTL_MIN_S,
    WORKER_GROUP,
)
from common.derived_settings import DerivedKeys, DerivedOfWorker, own_name
from common.errors import SettingsError
from common.image_settings import ImageGatewaySettings, ImageWorkerSettings
from common.lane_settings import LaneSettings, TenantSettings
from common.model_settings import ModelSettings
from common.partitions import checked_queue
from common.redis_urls import check_for_cluster, checked_url
from common.replication_settings import ReplicationSettings
from common.task_limits import parse_limits
from common.workflow_settings import WorkflowGatewaySettings, WorkflowWorkerSettings

_DAY_S = 24 * 3600
#: Where a URL, even a broken one, may hold a password: anywhere before its last `@`.
_PASSWORD = re.compile(r"^([\w+]+:/*)?.*(?=@)|(password=)[^&]*", re.DOTALL | re.IGNORECASE)


class CommonSettings(LaneSettings, DerivedKeys):
    """What gateway and worker must agree on."""

    #: The process's name in logs and traces.
    service: ClassVar[str] = "sluice"

    model_config = SettingsConfigDict(
        env_ignore_empty=True, extra="ignore", frozen=True, case_sensitive=False
    )

    redis_url: str | None = Field(
        None,
        description="`redis://`, `rediss://` or `unix://` URL of Redis, or one of several hosts: "
        "`redis+sentinel://`, `redis+cluster://` (see Scaling). Unset: a private Redis is started "
        "under SLUICE_DATA_DIR, shared by all processes of that directory.",
    )
    sluice_data_dir: str = Field(
        ".sluice", description="Where the private Redis keeps its data, socket and log."
    )
    embedded_fsync: Literal["everysec", "always"] = Field(
        "everysec",
        description="`appendfsync` of the private Redis. `everysec` may lose up to two seconds "
        "in a power cut, or if Redis is killed while the disk is slow; `always` loses nothing and "
        "is slower.",
    )
    queue_stream_key: str = Field(QUEUE_STREAM, min_length=1, description="The queue stream.")
    worker_group: str = Field(
        WORKER_GROUP, min_length=1, description="The consumer group that drains the queue."
    )
    dlq_stream_key: str = Field(
        DEAD_LETTER_STREAM, min_length=1, description="Where hopeless messages are put aside."
    )
    queue_partitions: int = Field(
        1,
        ge=1,
        le=PARTITIONS_MAX,
        description="Into how many partitions jobs are divided, each with a queue of its own; the "
        "same for all gateways and workers. 1: keys are exactly the contract's. More: for Redis "
        "Cluster, where every partition may lie on another server.",
    )
    job_index_max: int = Field(
        INDEX_MAX,
        ge=0,
        le=1_000_000,
        description="Newest jobs that `GET /v1/jobs` lists; 0 for none, and no index is kept. "
        "About 100 bytes of Redis each.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line that is written."
    )
    log_format: Literal["auto", "text", "json", "journal"] = Field(
        "auto",
        description="`text` for people, `json` for one JSON object a line, `journal` for journald "
        "with fields such as JOB_ID. `auto`: `journal` under systemd, else `text`.",
    )
    max_memory_pressure: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Percent of time in which every task of the box stood still for want of memory "
        "(PSI `full avg10`) from which on no new work is begun; 0 for any.",
    )
    min_available_mb: int = Field(
        0, ge=0, description="Megabytes of free memory below which no new work is begun."
    )
    max_temperature_c: float = Field(
        0.0,
        ge=0,
        le=150,
        description="Degrees Celsius of the hottest sensor from which on no new work is begun; 0 "
        "for any.",
    )

    @field_validator("queue_stream_key")
    @classmethod
    def _no_partitions_name(cls, value: str) -> str:
        return checked_queue(value)

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, value: str | None) -> str | None:
        return None if value is None else checked_url(value)


class GatewaySettings(
    BullmqGatewaySettings,
    ImageGatewaySettings,
    WorkflowGatewaySettings,
    ReplicationSettings,
    TenantSettings,
    CommonSettings,
):
    """Settings of `python -m gateway`."""

    service: ClassVar[str] = "sluice-gateway"

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    job_ttl_s: int = Field(
        _DAY_S,
        ge=TTL_MIN_S,
        le=TTL_MAX_S,
        description="Seconds a job is kept after its last change, unless the request says.",
    )
    backpressure_max_backlog: int = Field(
        200, ge=1, description="Jobs waiting or running from which on a POST gets 429."
    )
    max_payload_bytes: int = Field(
        200_000, ge=2, le=16 << 20, description="Longest payload, in bytes of compact JSON."
    )
    idempotency_ttl_s: int = Field(
        _DAY_S,
        ge=1,
        le=TTL_MAX_S,
        description="Seconds an Idempotency-Key is remembered; never less than the job's TTL.",
    )
    sse_heartbeat_s: float = Field(
        15.0, gt=0, le=300, description="Seconds of silence after which a stream gets a comment."
    )
    sse_max_clients: int = Field(
        5000, ge=1, description="Open event streams per process; more get 503."
    )
    sse_max_life_s: float = Field(
        3600.0, gt=0, description="Seconds after which a stream is closed for the client to resume."
    )
    max_scheduled: int = Field(
        10_000,
        ge=0,
        description="Jobs that may wait for their `delay_s` or `run_at`; more get 429.",
    )
    max_document_bytes: int = Field(
        5_000_000, ge=1024, le=64 << 20, description="Longest document that may be uploaded."
    )
    max_wait_s: float = Field(
        60.0, ge=0, le=600, description="Longest time that `Prefer: wait` is granted."
    )
    auth: Literal["auto", "required", "off"] = Field(
        "auto",
        description="Whether requests need an API key. `auto`: only beyond loopback; `off` is "
        "refused there.",
    )
    dashboard: Literal["on", "read-only", "off"] = Field(
        "on",
        description="The pages at /ui. `read-only`: they show everything and change nothing, "
        "whoever looks; `off`: there are none.",
    )
    allowed_hosts: str = Field(
        "",
        description="Names by which this gateway may be called, separated by commas, beside "
        "addresses, `localhost` and the machine's own name.",
    )
    allowed_origins: str = Field(
        "",
        description="Web origins whose pages may call this gateway, such as "
        "`https://app.example.com`, separated by commas. Its own always may.",
    )
    on_pressure: Literal["hold", "refuse"] = Field(
        "refuse",
        description="What happens to new jobs while the box is short of memory or too hot: `hold` "
        "accepts them to wait, `refuse` answers 503.",
    )
    max_connections: int = Field(
        10_000, ge=1, description="Open connections; more get 503 and are closed."
    )
    max_header_bytes: int = Field(
        32_768, ge=1024, le=1 << 20, description="Longest request line and headers; more get 431."
    )
    header_timeout_s: float = Field(
        10.0, gt=0, le=600, description="Seconds a client may take to send its headers."
    )
    body_timeout_s: float = Field(
        30.0, gt=0, le=3600, description="Seconds a client may take to send its body."
    )

    @model_validator(mode="after")
    def _fit_for_a_cluster(self) -> GatewaySettings:
        queues = self.bullmq_add_queues
        check_for_cluster(self.redis_url, self.queue_partitions, self.bullmq_redis_url, queues)
        return self


class WorkerSettings(
    DerivedOfWorker,
    ModelSettings,
    BullmqWorkerSettings,
    ImageWorkerSettings,
    WorkflowWorkerSettings,
    CommonSettings,
):
    """Settings of `python -m worker`."""

    consumer: str = Field(
        default_factory=own_name,
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

    @model_validator(mode="after")
    def _read_shorter_than_lease(self) -> WorkerSettings:
        if self.block_ms >= self.lease_ms:
            raise ValueError(
                f"BLOCK_MS ({self.block_ms}) must be shorter than LEASE_MS ({self.lease_ms}); "
                "lower BLOCK_MS or raise LEASE_MS"
            )
        return self


Settings = TypeVar("Settings", bound=CommonSettings)


def load(kind: type[Settings], **overrides: Any) -> Settings:
    """Read settings from the environment, and those it does not name from systemd's credentials.

    A SettingsError names each bad variable. What it was raised from holds passwords, and is left
    out of the traceback.
    """
    try:
        return kind(_secrets_dir=_credentials(), **overrides)
    except ValidationError as error:
        lines = [_explain(problem["loc"], problem["msg"]) for problem in error.errors()]
        raise SettingsError("; ".join(lines)) from None
    except (OSError, UnreadableSettings) as error:
        cause = error.__cause__ or error
        raise SettingsError(f"the credentials cannot be read: {cause}") from None


def _credentials() -> str | None:
    """Where systemd has put files such as `redis_url`: LoadCredential= in the unit."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    return directory if os.path.isdir(directory) else None


def _explain(location: tuple[int | str, ...], message: str) -> str:
    name = str(location[0]).upper() if location else ""
    value, shown = os.environ.get(name), ""
    if value:
        masked = _PASSWORD.sub(lambda found: f"{found[1] or found[2] or ''}***", value)
        shown = f"{name}={masked!r}: "
    elif name:
        shown = f"{name}: "
    return f"{shown}{message.removeprefix('Value error, ')}"
