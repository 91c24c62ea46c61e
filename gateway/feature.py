"""A feature of the gateway: routes and, if needed, its own state and background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastapi import APIRouter

from sluice.common.aio import cancel
from sluice.common.process.usage import LoopLag
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.pipelined import CommandClient
from sluice.common.redis.scripts import BatchScript
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.state import GatewayState

T = TypeVar("T")


class FeatureConnections(Protocol):
    """Opens connections to Redis for a feature; the gateway closes them."""

    @property
    def url(self) -> str:
        """The gateway's Redis."""

    def script_batcher(self, script: BatchScript) -> ScriptBatcher:
        """Runs a script on the home partition."""

    def connect(self, url: str = "", *, block_s: float = 0.0) -> CommandClient:
        """A connection to a URL, or to the home partition.

        `block_s`: how long its commands may block.
        """


@dataclass(frozen=True)
class FeatureContext:
    """What a feature builds its state from when the gateway starts."""

    state: GatewayState
    connections: FeatureConnections
    loop_lag: LoopLag
    #: Callbacks that the feature adds run when the gateway stops.
    stack: AsyncExitStack

    @property
    def settings(self) -> GatewaySettings:
        return self.state.settings


@dataclass(frozen=True)
class Feature(Generic[T]):
    """One entry of `sluice.gateway.app.FEATURES`."""

    routers: Sequence[APIRouter]
    #: `app.state` keeps the feature's state under this name; empty for a feature without state.
    state_name: str = ""
    #: Builds the state; None for a feature that needs only the core's.
    build: Callable[[FeatureContext], T] | None = None
    #: Runs the feature's background tasks for as long as the gateway runs.
    background: Callable[[FeatureContext, T], AbstractAsyncContextManager[None]] | None = None
    #: Raises a SettingsError before anything is started.
    check_settings: Callable[[GatewaySettings], object] | None = None
    #: False if the settings disable the feature.
    enabled: Callable[[GatewaySettings], bool] = lambda settings: True


@asynccontextmanager
async def background_tasks(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines for as long as the block lasts."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield
    finally:
        await cancel(*tasks)
