"""How long to wait before a delivery is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.settings import WorkerSettings


@dataclass(frozen=True)
class Retries:
    """How often and how patiently."""

    #: Attempts beyond the first; 0 for none.
    most: int
    base_s: float
    cap_s: float
    #: Between 0 and 1.
    chance: Callable[[], float] = random.random

    @classmethod
    def of(cls, settings: WorkerSettings) -> Retries:
        """As the settings say."""
        enabled = settings.workflow_webhook_enable_retries
        return cls(
            most=settings.workflow_webhook_max_retries if enabled else 0,
            base_s=settings.workflow_webhook_retry_backoff_seconds,
            cap_s=settings.workflow_webhook_retry_cap_seconds,
        )

    def are_left(self, attempt: int) -> bool:
        """Whether another attempt may follow this one, which counts from 1."""
        return attempt <= self.most

    def delay_s(self, attempt: int, asked_s: float | None = None) -> float:
        """Seconds after this attempt: doubled each time, one half of it by chance.

        The receiver may ask for more, up to the cap; not for less, or it could have us hammer it.
        """
        doublings = min(attempt - 1, 64)  # beyond, a float would not hold it
        whole = min(self.cap_s, self.base_s * 2.0**doublings)
        delay = whole / 2 + self.chance() * whole / 2
        return max(delay, min(asked_s or 0.0, self.cap_s))
