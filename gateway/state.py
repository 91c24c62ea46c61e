"""The core state that every route of one running gateway shares.

A feature with state of its own keeps it in its own package, with its own accessor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from redis.asyncio import Redis
from starlette.requests import Request

from sluice.common.settings.gateway import GatewaySettings

if TYPE_CHECKING:
    from sluice.common.jobs.audit.auditor import Auditor
    from sluice.common.jobs.partition_clients import PartitionClients
    from sluice.common.jobs.pause import PauseStore
    from sluice.common.jobs.protocols import JobStoreProtocol, QueueProtocol
    from sluice.gateway.auth.access import Access
    from sluice.gateway.events.hub import EventHub
    from sluice.gateway.events.slots import StreamSlots
    from sluice.gateway.jobs.backpressure import DrainRate, PressureMonitor


class StreamHub(Protocol):
    """A hub that serves event streams."""

    @property
    def clients(self) -> int:
        """Streams that are open."""

    def close_streams(self) -> None:
        """End every stream with a shutdown notice."""

    async def stop(self) -> None:
        """End the hub's own tasks."""


class StreamHubs:
    """Every hub of this process: the stream limit, hints and shutdown cover all of them."""

    def __init__(self) -> None:
        self._hubs: list[StreamHub] = []
        self._hint_handlers: list[Callable[[bytes], None]] = []

    def add(self, hub: StreamHub, on_hint: Callable[[bytes], None] | None = None) -> None:
        """Include a hub; `on_hint` is called with each hint that jobs or images have changed."""
        self._hubs.append(hub)
        if on_hint is not None:
            self._hint_handlers.append(on_hint)

    @property
    def clients(self) -> int:
        """Event streams that are open, of all hubs."""
        return sum(hub.clients for hub in self._hubs)

    def on_hint(self, message: bytes) -> None:
        """Pass on a hint from Redis."""
        for handler in self._hint_handlers:
            handler(message)

    def close_streams(self) -> None:
        """End every stream with a shutdown notice."""
        for hub in self._hubs:
            hub.close_streams()

    async def stop(self) -> None:
        for hub in self._hubs:
            await hub.stop()


@dataclass(frozen=True)
class GatewayState:
    """Built when the app starts, closed when it stops."""

    settings: GatewaySettings
    store: JobStoreProtocol
    hub: EventHub
    #: The job hub and those of the features.
    streams: StreamHubs
    stream_slots: StreamSlots
    drain_rate: DrainRate
    queue: QueueProtocol
    auditor: Auditor
    #: For routes that only read: the client of each partition, and that of the home partition.
    lines: PartitionClients
    client: Redis
    #: Jobs that one partition accepts: its share of what the settings allow.
    backlog_limit: int
    schedule_limit: int
    access: Access
    pressure: PressureMonitor
    pauses: PauseStore


def state_of(request: Request) -> GatewayState:
    state: GatewayState = request.app.state.gateway
    return state
