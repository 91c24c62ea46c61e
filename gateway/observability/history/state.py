"""What the routes of the history and of the activity stream need beyond the core state."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from common.contracts.stats import StatsKeys
from gateway.dashboard.activity.feed import ActivityFeed
from gateway.observability.history.reader import HistoryReader
from gateway.observability.history.rings import Rings
from gateway.state import GatewayState


@dataclass(frozen=True)
class HistoryServices:
    """Built when the app starts."""

    reader: HistoryReader
    #: Streams new samples and changed jobs to pages.
    feed: ActivityFeed

    @classmethod
    def build(cls, state: GatewayState) -> HistoryServices:
        """The feed reads samples by the same reader as the routes."""
        settings = state.settings
        reader = HistoryReader(Rings(state.client, StatsKeys(settings.keys.queue)))
        feed = ActivityFeed(
            state.lines,
            reader,
            state.hub.metrics,
            settings.sse_heartbeat_s,
            settings.sse_max_life_s,
        )
        return cls(reader, feed)


def history_of(request: Request) -> HistoryServices:
    """The history services behind a request."""
    services: HistoryServices = request.app.state.history
    return services
