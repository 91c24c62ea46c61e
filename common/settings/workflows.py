"""Settings of the workflows feature: gateway, worker, and shared."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from sluice.common.contracts.jobs import TTL_MAX_S
from sluice.common.features.workflows.webhooks.hosts import AllowedHosts
from sluice.common.settings.base import SettingsPart, checked_signing_key

_DAY_S = 24 * 3600


class SharedWorkflowSettings(SettingsPart):
    """Settings of both gateway and worker."""

    workflow_webhook_allowed_hosts: str = Field(
        "",
        description="Hosts, addresses or networks to which webhooks may be sent although they are "
        "not public, comma-separated, such as `127.0.0.1,hooks.lan,192.168.1.0/24`.",
    )

    @field_validator("workflow_webhook_allowed_hosts")
    @classmethod
    def _known_hosts(cls, value: str) -> str:
        AllowedHosts.parse(value)
        return value


class WorkflowGatewaySettings(SharedWorkflowSettings):
    """Settings of the gateway: retention, and waiting for a step."""

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
        description="Seconds that an execute request waits for its step before it answers 202, "
        "unless the request sets a time.",
    )


class WorkflowWorkerSettings(SharedWorkflowSettings):
    """Settings of the worker: sources, reconciliation and webhook delivery."""

    workflow_sources_root: str = Field(
        "",
        description="Directory that contains all sources of type `file` and `dir`. Empty: such "
        "sources are refused.",
    )
    workflow_reconcile_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Seconds between two scans for steps whose job ended without updating them, "
        "and for expired reviews.",
    )
    workflow_webhook_secret: SecretStr = Field(
        SecretStr(""),
        description="Key that signs webhooks (HMAC-SHA256), at least 24 characters; prefer a "
        "systemd credential `workflow_webhook_secret`. Empty: webhooks are not signed.",
    )
    workflow_webhook_enable_retries: bool = Field(
        True, description="Whether failed webhook deliveries are retried."
    )
    workflow_webhook_max_retries: int = Field(
        5, ge=0, le=100, description="Maximum number of retries of a webhook delivery."
    )
    workflow_webhook_retry_backoff_seconds: float = Field(
        1.0,
        gt=0,
        le=3600,
        description="Seconds before the first retry of a delivery; doubles with each retry.",
    )
    workflow_webhook_retry_cap_seconds: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="Longest delay between two tries of a delivery, in seconds, even if the "
        "receiver asks for more.",
    )
    workflow_webhook_timeout_seconds: float = Field(
        5.0, gt=0, le=300, description="Seconds that one webhook delivery may take."
    )
    workflow_webhook_parallel: int = Field(
        8,
        ge=1,
        le=256,
        description="Maximum number of webhook deliveries at once in this process.",
    )
    workflow_webhook_dlq_path: str = Field(
        "logs/workflow_webhook_dlq.jsonl",
        description="File to which each failed webhook delivery is appended as a line of JSON.",
    )

    @field_validator("workflow_webhook_secret")
    @classmethod
    def _long_webhook_key(cls, value: SecretStr) -> SecretStr:
        return checked_signing_key(value)
