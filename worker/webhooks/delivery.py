"""One delivery that was taken: from its entry to what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from common import codec, crashpoints, logs
from common.contracts.webhooks import CallbackField, Settlement
from common.crashpoints import CrashPoint
from common.workflow.types import WorkflowAnswer
from common.workflow.webhook_letters import Letter
from common.workflow.webhook_store import Taken, WebhookStore
from worker.threads import call_in_thread
from worker.webhooks.backoff import Retries
from worker.webhooks.body import Callback, callback_of
from worker.webhooks.dead_file import DeadFile
from worker.webhooks.lines import attempt_detail, letter_line, redrive_line
from worker.webhooks.sending import Attempted, Sender
from worker.webhooks.tally import Tally

log = logging.getLogger(__name__)


class Delivery:
    """Sends what was taken, once, and settles it."""

    def __init__(
        self,
        store: WebhookStore,
        sender: Sender,
        retries: Retries,
        dead_file: DeadFile,
        tally: Tally,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sender = sender
        self._retries = retries
        self._dead_file = dead_file
        self._clock = clock
        self.tally = tally

    async def run(self, taken: Taken) -> Attempted | None:
        """One attempt; None where there was nothing to send."""
        logs.job_id.set(taken.job_id)
        logs.attempt.set(taken.attempt)
        try:
            callback = _callback(taken)
        except ValueError as error:
            log.error("an entry of the outbox is dropped, for it cannot be read: %s", error)
            await self._store.settle(taken, Settlement.DROP)
            return None
        attempted = await self._sender.send(taken.url, callback.body)
        if crashpoints.ARMED:
            crashpoints.reach(CrashPoint.AFTER_DELIVERY)
        await self._settle(taken, callback, attempted)
        return attempted

    async def _settle(self, taken: Taken, callback: Callback, attempted: Attempted) -> None:
        if attempted.ok:
            await self._delivered(taken, callback)
        elif attempted.retryable and self._retries.are_left(taken.attempt):
            await self._again(taken, callback, attempted)
        else:
            await self._give_up(taken, callback, attempted)

    async def _delivered(self, taken: Taken, callback: Callback) -> None:
        if taken.is_redrive:
            await self._write(redrive_line(taken.name, True, self._now_ms))
        log.log(
            logging.INFO if taken.is_redrive or taken.attempt > 1 else logging.DEBUG,
            "webhook %s delivered at attempt %d",
            callback.event_id,
            taken.attempt,
        )
        if await self._store.settle(taken, Settlement.OK) is not WorkflowAnswer.LOST:
            self.tally.delivered += 1

    async def _again(self, taken: Taken, callback: Callback, attempted: Attempted) -> None:
        delay_s = self._retries.delay_s(taken.attempt, attempted.asked_s)
        log.warning(
            "webhook %s: %s; attempt %d of %d, the next in %.1f s",
            callback.event_id,
            attempted.error,
            taken.attempt,
            self._retries.most + 1,
            delay_s,
        )
        settled = await self._store.settle(
            taken,
            Settlement.RETRY,
            delay_ms=round(delay_s * 1000),
            detail=attempt_detail(taken.attempt, attempted, self._now_ms),
        )
        if settled is not WorkflowAnswer.LOST:
            self.tally.retried += 1

    async def _give_up(self, taken: Taken, callback: Callback, attempted: Attempted) -> None:
        """The file first: a letter that Redis alone had could be lost with it."""
        now_ms = self._now_ms
        log.error(
            "webhook %s is given up after %d attempts: %s",
            callback.event_id,
            taken.attempt,
            attempted.error,
        )
        letter: Letter | None = None
        if taken.is_redrive:
            await self._write(redrive_line(taken.name, False, now_ms))
        else:
            last = attempt_detail(taken.attempt, attempted, now_ms)
            letter = Letter(
                *(callback.event_id, callback.event_type, taken.job_id, taken.url, taken.attempt),
                detail=b"[%s]" % b",".join(filter(None, (taken.detail, last))),
                body=callback.body,
            )
            await self._write(letter_line(letter, now_ms))
        settled = await self._store.settle(taken, Settlement.DEAD, letter=letter)
        if settled is not WorkflowAnswer.LOST:
            self.tally.failed += 1

    async def _write(self, line: bytes) -> None:
        await call_in_thread(self._dead_file.append, line)

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _callback(taken: Taken) -> Callback:
    """What is sent: made of the outbox's entry, or the letter's own bytes."""
    if not taken.is_redrive:
        return callback_of(taken.job_id, taken.workflow, taken.content)
    said = codec.loads(taken.content)
    kind = said.get(CallbackField.EVENT_TYPE.value) if isinstance(said, dict) else None
    return Callback(taken.name, str(kind or ""), taken.content)
