"""Delivers webhooks beside the jobs: takes what is due, as much at once as it may."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final

from common.aio import cancel
from common.contracts.workers import WorkerField
from common.errors import SluiceError
from common.features.workflows.webhooks.hosts import AllowedHosts, WebhookRefused, check_url
from common.features.workflows.webhooks.store import ClaimedDelivery, DueDelivery, WebhookStore
from common.observability.heartbeats import WebhooksReading
from common.redis.pipelined import keep_subscribed
from worker.features.webhooks.dead_letter_file import DeadLetterFile
from worker.features.webhooks.delivery import DeliveryRunner, RetryPolicy, WebhookCounters
from worker.features.webhooks.sender import Sender
from worker.registry import Registry, Service, WorkerServices

if TYPE_CHECKING:
    from common.settings.worker import WorkerSettings
    from worker.features.shared import SharedServices

#: Origins of which is remembered that they hang.
MOST_SLOW_ORIGINS: Final = 1000


class OriginLimits:
    """How many deliveries go where.

    One origin gets half of the places at most. One whose last delivery ran out of time gets a
    single one until a delivery to it has ended in time; and all such origins together, half.
    """

    def __init__(self, places: int) -> None:
        self._slots = places
        self._half = max(1, places // 2)
        self._busy: Counter[str] = Counter()
        #: Who hung last is at the end.
        self._slow: dict[str, None] = {}

    @property
    def free(self) -> int:
        return max(0, self._slots - sum(self._busy.values()))

    def acquire(self, origin: str) -> bool:
        """Take a place for a delivery to this origin, if it may have one now."""
        if not self.free or not self._may_have(origin):
            return False
        self._busy[origin] += 1
        return True

    def release(self, origin: str, timed_out: bool | None = None) -> None:
        """Give it back; None where nothing was sent."""
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
        hang = sum(count for each, count in self._busy.items() if each in self._slow)
        return not self._busy[origin] and hang < self._half


log = logging.getLogger(__name__)

#: How long it may take until something is noticed that nobody told of.
IDLE_S: Final = 1.0
#: Beyond the time that a delivery may take, how long it is one's own.
LEASE_MARGIN_S: Final = 5.0
#: Entries looked at together, and how many of such looks, where many are due to receivers that
#: may have no more now.
PAGE_SIZE: Final = 128
MOST_PAGES: Final = 16
#: How long a worker that stops waits for what is under way.
SHUTDOWN_GRACE_S: Final = 10.0


class WebhookService(Service):
    """Any number of workers may: each delivery is taken by one, for as long as its lease."""

    def __init__(self, settings: WorkerSettings, sender: Sender | None = None) -> None:
        self._settings = settings
        self._sender = sender
        self._lease_s = settings.workflow_webhook_timeout_seconds + LEASE_MARGIN_S
        self._counters = WebhookCounters()
        self._origins = OriginLimits(settings.workflow_webhook_parallel)
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        #: Where the next look begins.
        self._offset = 0
        self._wake = asyncio.Event()

    async def start(self, house: WorkerServices) -> None:
        assert house.webhooks is not None
        assert house.subscribe is not None
        self._store: WebhookStore = house.webhooks
        self._listen = house.subscribe
        house.heartbeat_fields[WorkerField.WEBHOOKS] = self.reading

    async def run(self) -> None:
        wire = self._listen(lambda _: self._wake.set())
        listening = asyncio.create_task(
            keep_subscribed(
                wire,
                self._store.keys.wake,
                self._wake.set,
                "webhooks are noticed within a second meanwhile",
            )
        )
        try:
            while True:
                await self._pause(await self._run_safely())
        finally:
            await cancel(listening)
            await wire.aclose()

    async def close(self) -> None:
        """Let end what is under way; what does not, another worker sends again."""
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
        dead_file = DeadLetterFile(settings.workflow_webhook_dlq_path)
        return DeliveryRunner(
            self._store, self._sender, RetryPolicy.of(settings), dead_file, self._counters
        )

    def reading(self) -> WebhooksReading:
        """What it has done, for the heartbeat."""
        tally = self._counters
        return WebhooksReading(
            delivered=tally.delivered,
            retried=tally.retried,
            failed=tally.failed,
            under_way=len(self._in_flight),
        )

    async def run_once(self) -> float:
        """Begin what is due and may begin; returns the seconds until there may be more."""
        wait_s = IDLE_S
        first, self._offset = self._offset, 0
        for offset in range(first, first + MOST_PAGES * PAGE_SIZE, PAGE_SIZE):
            if not self._origins.free:
                break  # whoever ends wakes us
            look = await self._store.next_due(PAGE_SIZE, offset)
            due = [each for each in look.entries if each.at_ms <= look.now_ms]
            await self._start_due(due)
            if len(due) < len(look.entries):
                wait_s = min(wait_s, (look.entries[len(due)].at_ms - look.now_ms) / 1000)
            if len(due) < PAGE_SIZE:
                break
        else:  # there are more: they come next, or those before them would have all the looks
            self._offset = first + MOST_PAGES * PAGE_SIZE
        return wait_s

    async def _run_safely(self) -> float:
        self._wake.clear()
        try:
            return await self.run_once()
        except SluiceError as error:
            log.warning("webhooks wait: %s", error)
        except Exception:  # whatever it is, deliveries must go on
            log.exception("webhooks wait")
        return IDLE_S

    async def _pause(self, wait_s: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(wait_s, 0.0))

    async def _start_due(self, due: list[DueDelivery]) -> None:
        """Take those for whose receivers there is a place."""
        chosen: dict[str, str] = {}
        for name, url, _ in due:
            origin = self._origin(url)
            if name not in self._in_flight and name not in chosen and self._origins.acquire(origin):
                chosen[name] = origin
        if not chosen:
            return
        since = time.monotonic()
        taken: dict[str, ClaimedDelivery] = {}
        try:
            for each in await self._store.claim(list(chosen), round(self._lease_s * 1000)):
                taken[each.name] = each
        finally:
            for name, origin in chosen.items():
                if name not in taken:
                    self._origins.release(origin)
        for name, each in taken.items():
            task = asyncio.create_task(self._deliver(each, chosen[name], since))
            self._in_flight[name] = task

    async def _deliver(self, taken: ClaimedDelivery, origin: str, since: float) -> None:
        timed_out: bool | None = None
        try:
            if time.monotonic() - since > LEASE_MARGIN_S:
                return  # stopped in between: by now another may have it
            attempted = await self._delivery.run(taken)
            timed_out = None if attempted is None else attempted.timed_out
        except SluiceError as error:
            log.warning("webhook of %s: %s; it is sent again", taken.name, error)
        except Exception:
            log.exception("webhook of %s; it is sent again", taken.name)
        finally:
            del self._in_flight[taken.name]
            self._origins.release(origin, timed_out)
            self._wake.set()

    def _origin(self, url: str) -> str:
        """Whose fate it shares; what is no URL fails at once, and shares nobody's."""
        try:
            return check_url(url, self._allowed).origin
        except WebhookRefused:
            return ""


def register(registry: Registry, settings: WorkerSettings, shared: SharedServices) -> None:
    registry.add_service(WebhookService(settings))
