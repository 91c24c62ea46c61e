"""Delivers one claimed webhook and records the outcome."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.common import codec
from sluice.common.contracts.webhooks import DeliveryOutcome, WebhookBodyField
from sluice.common.features.workflows.types import WorkflowAnswer
from sluice.common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from sluice.common.features.workflows.webhooks.store import ClaimedDelivery, WebhookStore
from sluice.common.observability import logs
from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.worker.execution.concurrency import call_in_thread
from sluice.worker.features.webhooks.dead_letter_file import (
    DeadLetterFile,
    attempt_detail,
    dead_letter_line,
    redrive_line,
)
from sluice.worker.features.webhooks.request import CallbackEvent, build_callback
from sluice.worker.features.webhooks.sender import DeliveryResult, Sender

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings


class WebhookCounters:
    """Counters for the worker's heartbeat."""

    def __init__(self) -> None:
        self.delivered = 0
        self.retried = 0
        self.failed = 0


@dataclass(frozen=True)
class RetryPolicy:
    """Number of retries and their delays."""

    #: Attempts beyond the first; 0 for none.
    max_retries: int
    base_s: float
    cap_s: float
    #: Returns a number between 0 and 1.
    jitter: Callable[[], float] = random.random

    @classmethod
    def of(cls, settings: WorkerSettings) -> RetryPolicy:
        enabled = settings.workflow_webhook_enable_retries
        return cls(
            max_retries=settings.workflow_webhook_max_retries if enabled else 0,
            base_s=settings.workflow_webhook_retry_backoff_seconds,
            cap_s=settings.workflow_webhook_retry_cap_seconds,
        )

    def allows_retry(self, attempt: int) -> bool:
        """True if another attempt may follow this one; attempts count from 1."""
        return attempt <= self.max_retries

    def delay_s(self, attempt: int, retry_after_s: float | None = None) -> float:
        """Seconds before the next attempt: exponential, half of it random.

        Retry-After may increase it up to the cap, but never reduce it.
        """
        doublings = min(attempt - 1, 64)  # bounds the exponent
        whole = min(self.cap_s, self.base_s * 2.0**doublings)
        delay = whole / 2 + self.jitter() * whole / 2
        return max(delay, min(retry_after_s or 0.0, self.cap_s))


log = logging.getLogger(__name__)


class DeliveryRunner:
    """Makes one attempt at a claimed delivery and settles it."""

    def __init__(
        self,
        store: WebhookStore,
        sender: Sender,
        retries: RetryPolicy,
        dead_letter_file: DeadLetterFile,
        counters: WebhookCounters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sender = sender
        self._retries = retries
        self._dead_letter_file = dead_letter_file
        self._clock = clock
        self.counters = counters

    async def run(self, claimed: ClaimedDelivery) -> DeliveryResult | None:
        """One attempt; None if there was nothing to send."""
        logs.job_id.set(claimed.job_id)
        logs.attempt.set(claimed.attempt)
        try:
            callback = _build_callback(claimed)
        except ValueError as error:
            log.error("dropped an unreadable outbox entry: %s", error)
            await self._store.settle(claimed, DeliveryOutcome.DROP)
            return None
        result = await self._sender.send(claimed.url, callback.body)
        crashpoints.reach(CrashPoint.AFTER_DELIVERY)
        await self._settle(claimed, callback, result)
        return result

    async def _settle(
        self, claimed: ClaimedDelivery, callback: CallbackEvent, result: DeliveryResult
    ) -> None:
        if result.ok:
            await self._finish(claimed, callback)
        elif result.retryable and self._retries.allows_retry(claimed.attempt):
            await self._retry_later(claimed, callback, result)
        else:
            await self._dead_letter(claimed, callback, result)

    async def _finish(self, claimed: ClaimedDelivery, callback: CallbackEvent) -> None:
        if claimed.is_redrive:
            await self._write(redrive_line(claimed.name, True, self._now_ms))
        log.log(
            logging.INFO if claimed.is_redrive or claimed.attempt > 1 else logging.DEBUG,
            "webhook %s delivered at attempt %d",
            callback.event_id,
            claimed.attempt,
        )
        if await self._store.settle(claimed, DeliveryOutcome.OK) is not WorkflowAnswer.LOST:
            self.counters.delivered += 1

    async def _retry_later(
        self, claimed: ClaimedDelivery, callback: CallbackEvent, result: DeliveryResult
    ) -> None:
        delay_s = self._retries.delay_s(claimed.attempt, result.retry_after_s)
        log.warning(
            "webhook %s: %s; attempt %d of %d, next in %.1f s",
            callback.event_id,
            result.error,
            claimed.attempt,
            self._retries.max_retries + 1,
            delay_s,
        )
        settled = await self._store.settle(
            claimed,
            DeliveryOutcome.RETRY,
            delay_ms=round(delay_s * 1000),
            detail=attempt_detail(claimed.attempt, result, self._now_ms),
        )
        if settled is not WorkflowAnswer.LOST:
            self.counters.retried += 1

    async def _dead_letter(
        self, claimed: ClaimedDelivery, callback: CallbackEvent, result: DeliveryResult
    ) -> None:
        """Write the file first, so that the dead letter survives a loss of Redis."""
        now_ms = self._now_ms
        log.error(
            "webhook %s: dead-lettered after %d attempts: %s",
            callback.event_id,
            claimed.attempt,
            result.error,
        )
        dead_letter: WebhookDeadLetter | None = None
        if claimed.is_redrive:
            await self._write(redrive_line(claimed.name, False, now_ms))
        else:
            last = attempt_detail(claimed.attempt, result, now_ms)
            dead_letter = WebhookDeadLetter(
                *(
                    callback.event_id,
                    callback.event_type,
                    claimed.job_id,
                    claimed.url,
                    claimed.attempt,
                ),
                detail=b"[%s]" % b",".join(filter(None, (claimed.detail, last))),
                body=callback.body,
            )
            await self._write(dead_letter_line(dead_letter, now_ms))
        settled = await self._store.settle(claimed, DeliveryOutcome.DEAD, letter=dead_letter)
        if settled is not WorkflowAnswer.LOST:
            self.counters.failed += 1

    async def _write(self, line: bytes) -> None:
        await call_in_thread(self._dead_letter_file.append, line)

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _build_callback(claimed: ClaimedDelivery) -> CallbackEvent:
    """The event to send: built from the outbox entry, or the stored bytes of a dead letter."""
    if not claimed.is_redrive:
        return build_callback(claimed.job_id, claimed.workflow, claimed.content)
    event = codec.loads(claimed.content)
    kind = event.get(WebhookBodyField.EVENT_TYPE) if isinstance(event, dict) else None
    return CallbackEvent(claimed.name, str(kind or ""), claimed.content)
