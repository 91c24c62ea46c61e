"""What live workers last said, for routes that need to know now."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.heartbeats import Heartbeat, read_all
from common.patience import within
from gateway.problems import unavailable
from gateway.state import GatewayState

TIMEOUT_S = 2.0


async def live_workers(state: GatewayState) -> list[Heartbeat]:
    """By name; raises the Problem of a Redis that does not answer."""
    try:
        return await within(TIMEOUT_S, read_all(state.client, state.settings.keys))
    except asyncio.TimeoutError:
        raise unavailable(f"no answer within {TIMEOUT_S:.0f} s") from None
    except (RedisError, *TRANSIENT_ERRORS) as error:
        raise unavailable(str(error)) from None
