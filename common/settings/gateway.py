"""Settings of the gateway."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sluice.common.contracts.jobs import TTL_MAX_S, TTL_MIN_S
from sluice.common.redis.addresses import check_for_cluster
from sluice.common.settings.base import CommonSettings
from sluice.common.settings.bullmq import BullmqGatewaySettings
from sluice.common.settings.images import ImageGatewaySettings
from sluice.common.settings.queue import ReplicationSettings, TenantSettings
from sluice.common.settings.workflows import WorkflowGatewaySettings

_DAY_S = 24 * 3600


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
        description="Seconds a job is kept after its last change, unless the request sets `ttl_s`.",
    )
    backpressure_max_backlog: int = Field(
        200,
        ge=1,
        description="Reject new jobs with 429 while this many are waiting or running. With several "
        "partitions each gets an equal share, rounded up.",
    )
    max_payload_bytes: int = Field(
        200_000, ge=2, le=16 << 20, description="Largest payload, in bytes of compact JSON."
    )
    idempotency_ttl_s: int = Field(
        _DAY_S,
        ge=1,
        le=TTL_MAX_S,
        description="Seconds an Idempotency-Key is remembered; never less than the job's TTL.",
    )
    sse_heartbeat_s: float = Field(
        15.0,
        gt=0,
        le=300,
        description="Seconds of inactivity after which a comment is sent on an event stream.",
    )
    sse_max_clients: int = Field(
        5000,
        ge=1,
        description="Maximum number of open event streams and long polls per process; more get "
        "503. One key may have a tenth, at least 10; a tenth is reserved for admins.",
    )
    sse_max_life_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds after which an event stream is closed; the client reconnects.",
    )
    max_scheduled: int = Field(
        10_000,
        ge=0,
        description="Maximum number of jobs waiting for their `delay_s` or `run_at`; more get 429. "
        "With several partitions each gets an equal share, rounded up.",
    )
    max_document_bytes: int = Field(
        5_000_000, ge=1024, le=64 << 20, description="Largest uploaded document, in bytes."
    )
    max_wait_s: float = Field(
        60.0, ge=0, le=600, description="Longest wait that `Prefer: wait` may request, in seconds."
    )
    auth: Literal["auto", "required", "off"] = Field(
        "auto",
        description="Whether requests need an API key. `auto`: only if the gateway listens beyond "
        "loopback. `off` is allowed on loopback only.",
    )
    dashboard: Literal["on", "read-only", "off"] = Field(
        "on",
        description="The dashboard at /ui. `read-only`: it shows everything and changes nothing, "
        "for all users; `off` disables it.",
    )
    allowed_hosts: str = Field(
        "",
        description="Host names under which this gateway may be called, comma-separated, besides "
        "addresses, `localhost` and the machine's own name; `*.example.com` matches every "
        "subdomain.",
    )
    allowed_origins: str = Field(
        "",
        description="Web origins allowed to call this gateway, such as "
        "`https://app.example.com`, comma-separated. Its own origin is always allowed.",
    )
    on_pressure: Literal["hold", "refuse"] = Field(
        "refuse",
        description="New jobs while the host is short of memory or too hot: `hold` queues them, "
        "`refuse` answers 503.",
    )
    max_connections: int = Field(
        10_000, ge=1, description="Maximum number of open connections; more get 503 and are closed."
    )
    max_header_bytes: int = Field(
        32_768,
        ge=1024,
        le=1 << 20,
        description="Largest request line and headers, in bytes; more get 431.",
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
