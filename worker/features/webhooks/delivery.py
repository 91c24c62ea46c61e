"""One delivery that was taken: from its entry to what became of it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import codec
from common.contracts.webhooks import DeliveryOutcome, WebhookBodyField
from common.features.workflows.types import WorkflowAnswer
from common.features.workflows.webhooks.dead_letters import WebhookDeadLetter
from common.features.workflows.webhooks.store import ClaimedDelivery, WebhookStore
from common.observability import logs
from common.process import crashpoints
from common.process.crashpoints import CrashPoint
from worker.execution.concurrency import call_in_thread
from worker.features.webhooks.dead_letter_file import (
    DeadLetterFile,
    attempt_detail,
    dead_letter_line,
    redrive_line,
)
from worker.features.webhooks.request import CallbackEvent, build_callback
from worker.features.webhooks.sender import DeliveryResult, Sender

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings


class WebhookCounters:
    """Counts, for the worker's heartbeat."""

    def __init__(self) -> None:
        self.delivered = 0
        self.retried = 0
        self.failed = 0


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently."""

    #: Attempts beyond the first; 0 for none.
    max_retries: int
    base_s: float
    cap_s: float
    #: Between 0 and 1.
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
        """Whether another attempt may follow this one, which counts from 1."""
        return attempt <= self.max_retries

    def delay_s(self, attempt: int, asked_s: float | None = None) -> float:
        """Seconds after this attempt: doubled each time, one half of it by chance.

        The receiver may ask for more, up to the cap; not for less, or it could have us hammer it.
        """
        doublings = min(attempt - 1, 64)  # beyond, a float would not hold it
        whole = min(self.cap_s, self.base_s * 2.0**doublings)
        delay = whole / 2 + self.jitter() * whole / 2
        return max(delay, min(asked_s or 0.0, self.cap_s))


log = logging.getLogger(__name__)


class DeliveryRunner:
    """Sends what was taken, once, and settles it."""

    def __init__(
        self,
        store: WebhookStore,
        sender: Sender,
        retries: RetryPolicy,
        dead_file: DeadLetterFile,
        tally: WebhookCounters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sender = sender
        self._retries = retries
        self._dead_letter_file = dead_file
        self._clock = clock
        self.counters = tally

    async def run(self, taken: ClaimedDelivery) -> DeliveryResult | None:
        """One attempt; None where there was nothing to send."""
        logs.job_id.set(taken.job_id)
        logs.attempt.set(taken.attempt)
        try:
            callback = _build_callback(taken)
        except ValueError as error:
            log.error("an entry of the outbox is dropped, for it cannot be read: %s", error)
            await self._store.settle(taken, DeliveryOutcome.DROP)
            return None
        attempted = await self._sender.send(taken.url, callback.body)
        crashpoints.reach(CrashPoint.AFTER_DELIVERY)
        await self._settle(taken, callback, attempted)
        return attempted

    async def _settle(
        self, taken: ClaimedDelivery, callback: CallbackEvent, attempted: DeliveryResult
    ) -> None:
        if attempted.ok:
            await self._finish(taken, callback)
        elif attempted.retryable and self._retries.allows_retry(taken.attempt):
            await self._retry_later(taken, callback, attempted)
        else:
            await self._dead_letter(taken, callback, attempted)

    async def _finish(self, taken: ClaimedDelivery, callback: CallbackEvent) -> None:
        if taken.is_redrive:
            await self._write(redrive_line(taken.name, True, self._now_ms))
        log.log(
            logging.INFO if taken.is_redrive or taken.attempt > 1 else logging.DEBUG,
            "webhook %s delivered at attempt %d",
            callback.event_id,
            taken.attempt,
        )
        if await self._store.settle(taken, DeliveryOutcome.OK) is not WorkflowAnswer.LOST:
            self.counters.delivered += 1

    async def _retry_later(
        self, taken: ClaimedDelivery, callback: CallbackEvent, attempted: DeliveryResult
    ) -> None:
        delay_s = self._retries.delay_s(taken.attempt, attempted.retry_after_s)
        log.warning(
            "webhook %s: %s; attempt %d of %d, the next in %.1f s",
            callback.event_id,
            attempted.error,
            taken.attempt,
            self._retries.max_retries + 1,
            delay_s,
        )
        settled = await self._store.settle(
            taken,
            DeliveryOutcome.RETRY,
            delay_ms=round(delay_s * 1000),
            detail=attempt_detail(taken.attempt, attempted, self._now_ms),
        )
        if settled is not WorkflowAnswer.LOST:
            self.counters.retried += 1

    async def _dead_letter(
        self, taken: ClaimedDelivery, callback: CallbackEvent, attempted: DeliveryResult
    ) -> None:
        """The file first: a letter that Redis alone had could be lost with it."""
        now_ms = self._now_ms
        log.error(
            "webhook %s is given up after %d attempts: %s",
            callback.event_id,
            taken.attempt,
            attempted.error,
        )
        letter: WebhookDeadLetter | None = None
        if taken.is_redrive:
            await self._write(redrive_line(taken.name, False, now_ms))
        else:
            last = attempt_detail(taken.attempt, attempted, now_ms)
            letter = WebhookDeadLetter(
                *(callback.event_id, callback.event_type, taken.job_id, taken.url, taken.attempt),
                detail=b"[%s]" % b",".join(filter(None, (taken.detail, last))),
                body=callback.body,
            )
            await self._write(dead_letter_line(letter, now_ms))
        settled = await self._store.settle(taken, DeliveryOutcome.DEAD, letter=letter)
        if settled is not WorkflowAnswer.LOST:
            self.counters.failed += 1

    async def _write(self, line: bytes) -> None:
        await call_in_thread(self._dead_letter_file.append, line)

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _build_callback(taken: ClaimedDelivery) -> CallbackEvent:
    """What is sent: made of the outbox's entry, or the letter's own bytes."""
    if not taken.is_redrive:
        return build_callback(taken.job_id, taken.workflow, taken.content)
    said = codec.loads(taken.content)
    kind = said.get(WebhookBodyField.EVENT_TYPE) if isinstance(said, dict) else None
    return CallbackEvent(taken.name, str(kind or ""), taken.content)
