"""Webhook service of a worker: claims due deliveries and sends several of them at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final

from sluice.common.aio import cancel
from sluice.common.contracts.workers import WorkerField
from sluice.common.errors import SluiceError
from sluice.common.features.workflows.webhooks.hosts import AllowedHosts, WebhookRefused, check_url
from sluice.common.features.workflows.webhooks.store import (
    ClaimedDelivery,
    DueDelivery,
    WebhookStore,
)
from sluice.common.observability.heartbeats import WebhooksReading
from sluice.common.redis.pipelined import keep_subscribed
from sluice.worker.features.webhooks.dead_letter_file import DeadLetterFile
from sluice.worker.features.webhooks.delivery import DeliveryRunner, RetryPolicy, WebhookCounters
from sluice.worker.features.webhooks.sender import Sender
from sluice.worker.registry import Registry, Service, WorkerServices

if TYPE_CHECKING:
    from sluice.common.settings.worker import WorkerSettings
    from sluice.worker.features.shared import SharedServices

#: Most slow origins that are remembered.
MOST_SLOW_ORIGINS: Final = 1000


class OriginLimits:
    """Concurrency limits per origin, so that a slow receiver does not block the others.

    One origin gets at most half of the slots. An origin whose last delivery timed out gets one slot
    until a delivery to it ends in time; all such origins together get at most half.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._half = max(1, slots // 2)
        self._busy: Counter[str] = Counter()
        #: Ordered by the last timeout, latest last.
        self._slow: dict[str, None] = {}

    @property
    def free(self) -> int:
        return max(0, self._slots - sum(self._busy.values()))

    def acquire(self, origin: str) -> bool:
        """Take a slot for a delivery to this origin, if its limits allow."""
        if not self.free or not self._may_have(origin):
            return False
        self._busy[origin] += 1
        return True

    def release(self, origin: str, timed_out: bool | None = None) -> None:
        """Release the slot; `timed_out` is None if nothing was sent."""
        self._busy[origin] -= 1
        if not self._busy[origin]:
            del self._busy[origin]
        if timed_out is not None:
            self._slow.pop(origin, None)
        if timed_out:
            self._slow[origin] = None
            if len(self._slow) > MOST_SLOW_ORIGINS:
                del self._slow[next(iter(self._slow))]

    def _may_have(self, origin: str) -> bool:
        if origin not in self._slow:
            return self._busy[origin] < self._half
        slow = sum(count for each, count in self._busy.items() if each in self._slow)
        return not self._busy[origin] and slow < self._half


log = logging.getLogger(__name__)

#: Longest delay until work is noticed whose notification was lost.
IDLE_S: Final = 1.0
#: Validity of a claim beyond the timeout of a delivery.
LEASE_MARGIN_S: Final = 5.0
#: Entries read per page, and pages per round, if many due deliveries are held back by limits.
PAGE_SIZE: Final = 128
MOST_PAGES: Final = 16
#: How long a stopping worker waits for running deliveries.
SHUTDOWN_GRACE_S: Final = 10.0


class WebhookService(Service):
    """Runs in any number of workers: each delivery is claimed by one of them, for the time of a
    lease.
    """

    def __init__(self, settings: WorkerSettings, sender: Sender | None = None) -> None:
        self._settings = settings
        self._sender = sender
        self._lease_s = settings.workflow_webhook_timeout_seconds + LEASE_MARGIN_S
        self._counters = WebhookCounters()
        self._origins = OriginLimits(settings.workflow_webhook_parallel)
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        #: Offset at which the next round starts.
        self._offset = 0
        self._wake = asyncio.Event()

    async def start(self, services: WorkerServices) -> None:
        assert services.webhooks is not None
        assert services.subscribe is not None
        self._store: WebhookStore = services.webhooks
        self._listen = services.subscribe
        services.heartbeat_fields[WorkerField.WEBHOOKS] = self.reading

    async def run(self) -> None:
        wire = self._listen(lambda _: self._wake.set())
        listening = asyncio.create_task(
            keep_subscribed(
                wire,
                self._store.keys.wake,
                self._wake.set,
                "new webhooks are found by polling until the connection is back",
            )
        )
        try:
            while True:
                await self._pause(await self._run_safely())
        finally:
            await cancel(listening)
            await wire.aclose()

    async def close(self) -> None:
        """Wait for running deliveries; another worker repeats those that do not end in time."""
        if self._in_flight:
            await asyncio.wait(self._in_flight.values(), timeout=SHUTDOWN_GRACE_S)
        await cancel(*self._in_flight.values())
        if self._sender is not None:
            await self._sender.close()

    @cached_property
    def _allowed(self) -> AllowedHosts:
        return AllowedHosts.parse(self._settings.workflow_webhook_allowed_hosts)

    @cached_property
    def _delivery(self) -> DeliveryRunner:
        settings = self._settings
        if self._sender is None:
            secret = settings.workflow_webhook_secret.get_secret_value().encode()
            timeout_s = settings.workflow_webhook_timeout_seconds
            self._sender = Sender(self._allowed, secret, timeout_s)
        dead_letter_file = DeadLetterFile(settings.workflow_webhook_dlq_path)
        return DeliveryRunner(
            self._store, self._sender, RetryPolicy.of(settings), dead_letter_file, self._counters
        )

    def reading(self) -> WebhooksReading:
        """Counters for the heartbeat."""
        counters = self._counters
        return WebhooksReading(
            delivered=counters.delivered,
            retried=counters.retried,
            failed=counters.failed,
            under_way=len(self._in_flight),
        )

    async def run_once(self) -> float:
        """Start due deliveries within the limits; returns the seconds until the next round."""
        wait_s = IDLE_S
        first, self._offset = self._offset, 0
        for offset in range(first, first + MOST_PAGES * PAGE_SIZE, PAGE_SIZE):
            if not self._origins.free:
                break  # the end of a delivery wakes the service
            page = await self._store.next_due(PAGE_SIZE, offset)
            due = [each for each in page.entries if each.at_ms <= page.now_ms]
            await self._start_due(due)
            if len(due) < len(page.entries):
                wait_s = min(wait_s, (page.entries[len(due)].at_ms - page.now_ms) / 1000)
            if len(due) < PAGE_SIZE:
                break
        else:  # the next round continues here, so that later entries are reached, too
            self._offset = first + MOST_PAGES * PAGE_SIZE
        return wait_s

    async def _run_safely(self) -> float:
        self._wake.clear()
        try:
            return await self.run_once()
        except SluiceError as error:
            log.warning("webhook deliveries are delayed: %s", error)
        except Exception:  # deliveries must continue
            log.exception("webhook deliveries are delayed")
        return IDLE_S

    async def _pause(self, wait_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(wait_s, 0.0))

    async def _start_due(self, due: list[DueDelivery]) -> None:
        """Claim the deliveries whose origins have a free slot, and start them."""
        chosen: dict[str, str] = {}
        for name, url, _ in due:
            origin = self._origin(url)
            if name not in self._in_flight and name not in chosen and self._origins.acquire(origin):
                chosen[name] = origin
        if not chosen:
            return
        since = time.monotonic()
        claimed: dict[str, ClaimedDelivery] = {}
        try:
            for each in await self._store.claim(list(chosen), round(self._lease_s * 1000)):
                claimed[each.name] = each
        finally:
            for name, origin in chosen.items():
                if name not in claimed:
                    self._origins.release(origin)
        for name, each in claimed.items():
            task = asyncio.create_task(self._deliver(each, chosen[name], since))
            self._in_flight[name] = task

    async def _deliver(self, claimed: ClaimedDelivery, origin: str, since: float) -> None:
        timed_out: bool | None = None
        try:
            if time.monotonic() - since > LEASE_MARGIN_S:
                return  # the process was stalled: another worker may have claimed it
            result = await self._delivery.run(claimed)
            timed_out = None if result is None else result.timed_out
        except SluiceError as error:
            log.warning("webhook of %s: %s; it will be sent again", claimed.name, error)
        except Exception:
            log.exception("webhook of %s failed; it will be sent again", claimed.name)
        finally:
            del self._in_flight[claimed.name]
            self._origins.release(origin, timed_out)
            self._wake.set()

    def _origin(self, url: str) -> str:
        """Origin for the limits; '' for an invalid URL, which fails at once."""
        try:
            return check_url(url, self._allowed).origin
        except WebhookRefused:
            return ""


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    registry.add_service(WebhookService(settings))
