"""Delivers webhooks beside the jobs: takes what is due, as much at once as it may."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final

from common.cancellation import cancel
from common.contracts.workers import WorkerField
from common.errors import SluiceError
from common.subscription import stay_subscribed
from common.workflow.webhook_store import Due, Taken, WebhookStore
from worker.services import House, Service
from worker.signs import WebhooksReading
from worker.webhooks.origins import Origins
from worker.webhooks.tally import Tally

if TYPE_CHECKING:
    from common.settings import WorkerSettings
    from common.webhook_hosts import AllowedHosts
    from worker.webhooks.delivery import Delivery
    from worker.webhooks.sending import Sender

log = logging.getLogger(__name__)

#: How long it may take until something is noticed that nobody told of.
IDLE_S: Final = 1.0
#: Beyond the time that a delivery may take, how long it is one's own.
LEASE_MARGIN_S: Final = 5.0
#: Entries looked at together, and how many of such looks, where many are due to receivers that
#: may have no more now.
PAGE: Final = 128
MOST_PAGES: Final = 16
#: How long a worker that stops waits for what is under way.
FAREWELL_S: Final = 10.0


class Webhooks(Service):
    """Any number of workers may: each delivery is taken by one, for as long as its lease."""

    def __init__(self, settings: WorkerSettings, sender: Sender | None = None) -> None:
        self._settings = settings
        self._sender = sender
        self._lease_s = settings.workflow_webhook_timeout_seconds + LEASE_MARGIN_S
        self._tally = Tally()
        self._origins = Origins(settings.workflow_webhook_parallel)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        #: Where the next look begins.
        self._first = 0
        self._wake = asyncio.Event()

    async def start(self, house: House) -> None:
        """Connects nowhere yet."""
        assert house.webhooks is not None
        assert house.listen is not None
        self._store: WebhookStore = house.webhooks
        self._listen = house.listen
        house.telling[WorkerField.WEBHOOKS.value] = self.reading

    async def run(self) -> None:
        """Look, take, send, until canceled."""
        wire = self._listen(lambda _: self._wake.set())
        listening = asyncio.create_task(
            stay_subscribed(
                wire,
                self._store.keys.wake,
                self._wake.set,
                "webhooks are noticed within a second meanwhile",
            )
        )
        try:
            while True:
                await self._pause(await self._look_carefully())
        finally:
            await cancel(listening)
            await wire.aclose()

    async def close(self) -> None:
        """Let end what is under way; what does not, another worker sends again."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=FAREWELL_S)
        await cancel(*self._under_way.values())
        if self._sender is not None:
            await self._sender.close()

    @cached_property
    def _allowed(self) -> AllowedHosts:
        from common.webhook_hosts import AllowedHosts

        return AllowedHosts.parse(self._settings.workflow_webhook_allowed_hosts)

    @cached_property
    def _delivery(self) -> Delivery:
        """Who delivers; imported by the first delivery."""
        from worker.webhooks.backoff import Retries
        from worker.webhooks.dead_file import DeadFile
        from worker.webhooks.delivery import Delivery
        from worker.webhooks.sending import Sender

        settings = self._settings
        if self._sender is None:
            secret = settings.workflow_webhook_secret.get_secret_value().encode()
            timeout_s = settings.workflow_webhook_timeout_seconds
            self._sender = Sender(self._allowed, secret, timeout_s)
        dead_file = DeadFile(settings.workflow_webhook_dlq_path)
        return Delivery(self._store, self._sender, Retries.of(settings), dead_file, self._tally)

    def reading(self) -> WebhooksReading:
        """What it has done, for the heartbeat."""
        tally = self._tally
        return WebhooksReading(
            delivered=tally.delivered,
            retried=tally.retried,
            failed=tally.failed,
            under_way=len(self._under_way),
        )

    async def run_once(self) -> float:
        """Begin what is due and may begin; returns the seconds until there may be more."""
        wait_s = IDLE_S
        first, self._first = self._first, 0
        for offset in range(first, first + MOST_PAGES * PAGE, PAGE):
            if not self._origins.free:
                break  # whoever ends wakes us
            look = await self._store.look(PAGE, offset)
            due = [each for each in look.entries if each.at_ms <= look.now_ms]
            await self._begin(due)
            if len(due) < len(look.entries):
                wait_s = min(wait_s, (look.entries[len(due)].at_ms - look.now_ms) / 1000)
            if len(due) < PAGE:
                break
        else:  # there are more: they come next, or those before them would have all the looks
            self._first = first + MOST_PAGES * PAGE
        return wait_s

    async def _look_carefully(self) -> float:
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

    async def _begin(self, due: list[Due]) -> None:
        """Take those for whose receivers there is a place."""
        chosen: dict[str, str] = {}
        for name, url, _ in due:
            origin = self._origin(url)
            if name not in self._under_way and name not in chosen and self._origins.enter(origin):
                chosen[name] = origin
        if not chosen:
            return
        since = time.monotonic()
        taken: dict[str, Taken] = {}
        try:
            for each in await self._store.take(list(chosen), round(self._lease_s * 1000)):
                taken[each.name] = each
        finally:
            for name, origin in chosen.items():
                if name not in taken:
                    self._origins.leave(origin)
        for name, each in taken.items():
            task = asyncio.create_task(self._deliver(each, chosen[name], since))
            self._under_way[name] = task

    async def _deliver(self, taken: Taken, origin: str, since: float) -> None:
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
            del self._under_way[taken.name]
            self._origins.leave(origin, timed_out)
            self._wake.set()

    def _origin(self, url: str) -> str:
        """Whose fate it shares; what is no URL fails at once, and shares nobody's."""
        from common.webhook_hosts import WebhookRefused, check_url

        try:
            return check_url(url, self._allowed).origin
        except WebhookRefused:
            return ""
