"""Stays subscribed to channels of Redis through everything that may befall a connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from common.connection import TRANSIENT_ERRORS
from common.wire import Commander

log = logging.getLogger(__name__)

RECONNECT_S = 0.5
PING_EVERY_S = 10


async def stay_subscribed(
    wire: Commander,
    channel: str,
    on_subscribed: Callable[[], None],
    meanwhile: str,
    more: Sequence[str] = (),
) -> None:
    """Subscribe, also to `more`, and again whenever the connection was lost, until canceled.

    Messages go to the wire's `on_message`. Some may have been missed whenever `on_subscribed` is
    called; `meanwhile` tells the log how one gets by without them.
    """
    while True:
        try:
            # One by one: each has a reply of its own.
            for each in (channel, *more):
                await wire.execute_command("SUBSCRIBE", each)
            on_subscribed()
            for second in itertools.count(1):
                await asyncio.sleep(1)
                if not wire.ready or second % PING_EVERY_S == 0:
                    await wire.execute_command("PING")
                    break
        except Exception as error:  # whatever it is, listening must go on
            unforeseen = not isinstance(error, (RedisError, *TRANSIENT_ERRORS))
            log.warning("%s: %s", meanwhile, error, exc_info=unforeseen)
            await asyncio.sleep(RECONNECT_S)
