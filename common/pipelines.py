"""Replies of pipelines whose questions may each be refused."""

from __future__ import annotations

from typing import Any

from redis.asyncio.client import Pipeline

from common.connection import TRANSIENT_ERRORS


async def replies_of(pipe: Pipeline) -> list[Any]:
    """What a server says, with an exception in place of what it refuses for good.

    A server that is not itself, or has not got the keys any more, refuses everything for a while:
    that is raised, as if it did not answer.
    """
    found: list[Any] = await pipe.execute(raise_on_error=False)
    for reply in found:
        if isinstance(reply, TRANSIENT_ERRORS):
            raise reply
    return found
