"""Settings of the workflows: the gateway's part, the worker's part, and what both must know."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from common.contracts.jobs import TTL_MAX_S
from common.features.workflows.webhooks.hosts import AllowedHosts
from common.settings.derived import SettingsPart

_DAY_S = 24 * 3600


class SharedWorkflowSettings(SettingsPart):
    """What gateway and worker must agree on."""

    workflow_webhook_allowed_hosts: str = Field(
        "",
        description="Hosts, addresses or networks that webhooks may go to although they are not "
        "public, separated by commas, such as `127.0.0.1,hooks.lan,192.168.1.0/24`.",
    )

    @field_validator("workflow_webhook_allowed_hosts")
    @classmethod
    def _known_hosts(cls, value: str) -> str:
        AllowedHosts.parse(value)
        return value


class WorkflowGatewaySettings(SharedWorkflowSettings):
    """How long workflows and their answers are kept, how long a request waits for a step."""

    workflow_ttl_s: int = Field(
        30 * _DAY_S,
        ge=60,
        le=365 * _DAY_S,
        description="Seconds a workflow job is kept after its last change.",
    )
    workflow_idempotency_ttl_s: int = Field(
        _DAY_S,
        ge=1,
        le=TTL_MAX_S,
        description="Seconds an Idempotency-Key of the workflow API is remembered.",
    )
    workflow_execute_wait_s: float = Field(
        5.0,
        ge=0,
        le=30,
        description="Seconds an execute waits for its step before it answers 202, unless the "
        "request says.",
    )


class WorkflowWorkerSettings(SharedWorkflowSettings):
    """Where sources may lie, how webhooks are delivered."""

    workflow_sources_root: str = Field(
        "",
        description="Directory below which sources of type `file` and `dir` may lie. Empty: such "
        "sources are refused.",
    )
    workflow_reconcile_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Seconds between looks for steps whose core job ended without them, and for "
        "reviews that are over.",
    )
    workflow_webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="Signs webhooks (HMAC-SHA256); better a credential "
        "`workflow_webhook_secret`. Empty: they are not signed.",
    )
    workflow_webhook_enable_retries: bool = Field(
        True, description="Whether a webhook that failed is tried again."
    )
    workflow_webhook_max_retries: int = Field(
        5, ge=0, le=100, description="How often at most it is tried again."
    )
    workflow_webhook_retry_backoff_seconds: float = Field(
        1.0, gt=0, le=3600, description="Seconds before the first of these; doubles each time."
    )
    workflow_webhook_retry_cap_seconds: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="Longest time between two tries, even if the receiver asks for more.",
    )
    workflow_webhook_timeout_seconds: float = Field(
        5.0, gt=0, le=300, description="Seconds a receiver may take for one delivery."
    )
    workflow_webhook_parallel: int = Field(
        8, ge=1, le=256, description="Deliveries under way at once in this process."
    )
    workflow_webhook_dlq_path: str = Field(
        "logs/workflow_webhook_dlq.jsonl",
        description="File that gets one line of JSON for each delivery that was given up.",
    )
