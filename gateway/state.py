"""What the routes of one running gateway share."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis
from starlette.requests import Request

from common.audit import Auditor
from common.queue import QueueStore
from common.settings import GatewaySettings
from common.store import JobStore
from gateway.access import Access
from gateway.admission import DrainRate
from gateway.pressure import Pressure
from gateway.tail import Hub


@dataclass(frozen=True)
class GatewayState:
    """Made when the app starts, gone when it stops."""

    settings: GatewaySettings
    store: JobStore
    hub: Hub
    drain_rate: DrainRate
    queue: QueueStore
    auditor: Auditor
    #: For routes that only read.
    client: Redis
    access: Access
    pressure: Pressure


def state_of(request: Request) -> GatewayState:
    """The state behind a request."""
    state: GatewayState = request.app.state.gateway
    return state
