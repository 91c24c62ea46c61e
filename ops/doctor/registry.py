"""All checks, in the order in which they are made."""

from __future__ import annotations

from ops.doctor import (
    access_checks,
    gateway_checks,
    host_checks,
    image_checks,
    jetson_checks,
    model_checks,
    partition_checks,
    persistence_checks,
    queue_checks,
    redis_checks,
    secret_checks,
    settings_checks,
    unit_checks,
)
from ops.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    *settings_checks.CHECKS,
    *redis_checks.CHECKS,
    *partition_checks.CHECKS,
    *persistence_checks.CHECKS,
    *access_checks.CHECKS,
    *gateway_checks.CHECKS,
    *queue_checks.CHECKS,
    *model_checks.CHECKS,
    *image_checks.CHECKS,
    *unit_checks.CHECKS,
    *secret_checks.CHECKS,
    *host_checks.CHECKS,
    *jetson_checks.CHECKS,
)
