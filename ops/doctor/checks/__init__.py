"""All checks, in the order in which they run."""

from __future__ import annotations

from sluice.ops.doctor.checks import (
    access,
    gateway,
    host,
    images,
    jetson,
    model,
    persistence,
    queue,
    redis,
    settings,
    systemd,
)
from sluice.ops.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    *settings.CHECKS,
    *redis.CHECKS,
    *redis.PARTITION_CHECKS,
    *persistence.CHECKS,
    *access.CHECKS,
    *gateway.CHECKS,
    *queue.CHECKS,
    *model.CHECKS,
    *images.CHECKS,
    *systemd.CHECKS,
    *access.SECRET_CHECKS,
    *host.CHECKS,
    *jetson.CHECKS,
)
