"""`GET /v1/workers`: live workers, the jobs they run and their counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.common.aio import wait_for
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workers import WorkerField
from sluice.common.observability.heartbeats import Heartbeat, read_heartbeats
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.gateway.auth.callers import Caller, caller_of
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import store_unavailable
from sluice.gateway.state import state_of

TIMEOUT_S = 2.0
#: Seconds that the heartbeats are cached.
CACHE_TTL_S = 1.0


class LiveWorkers:
    """The heartbeats of live workers, cached; concurrent requests share one refresh."""

    def __init__(
        self, client: Redis, keys: JobKeys, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._refreshed_at = float("-inf")
        self._known: Sequence[Heartbeat] = ()
        self._refreshing: asyncio.Task[None] | None = None

    async def read(self) -> list[Heartbeat]:
        """The latest heartbeats, sorted by worker name; raises a 503 if Redis does not answer."""
        try:
            return await wait_for(TIMEOUT_S, read_heartbeats(self._client, self._keys))
        except asyncio.TimeoutError:
            raise store_unavailable(f"no answer within {TIMEOUT_S:.0f} s") from None
        except (RedisError, *TRANSIENT_ERRORS) as error:
            raise store_unavailable(str(error)) from None

    async def cached(self) -> Sequence[Heartbeat]:
        """Like `read`, at most CACHE_TTL_S old."""
        if self._clock() - self._refreshed_at >= CACHE_TTL_S:
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh())
                self._refreshing.add_done_callback(_retrieve_exception)
            await asyncio.shield(self._refreshing)
        return self._known

    async def _refresh(self) -> None:
        try:
            self._known = await self.read()
            self._refreshed_at = self._clock()
        finally:
            self._refreshing = None


def _retrieve_exception(reading: asyncio.Task[None]) -> None:
    """Retrieve the exception, since the requests that waited may have ended."""
    if not reading.cancelled():
        reading.exception()


router = APIRouter(tags=["workers"])


@dataclass(frozen=True, kw_only=True)
class WorkerView(Heartbeat):
    """The last heartbeat of a worker, and its age."""

    heartbeat_age_s: Annotated[float, Field(description="Seconds since the last heartbeat.")]


class WorkerList(BaseModel):
    """All live workers."""

    workers: list[WorkerView] = Field(description="Last heartbeat of each worker, by name.")


@router.get(
    "/v1/workers",
    summary="List workers",
    responses=problem_responses(_503="Redis does not answer."),
)
async def list_workers(request: Request) -> WorkerList:
    """Returns the last heartbeat of each worker. A worker that misses a few heartbeats in a row is
    no longer listed.

    A key that is bound to a tenant sees only that tenant's running jobs.
    """
    caller = caller_of(request)
    found = await state_of(request).workers.read()
    return WorkerList(workers=[_view(beat, caller) for beat in found])


def _view(beat: Heartbeat, caller: Caller) -> WorkerView:
    visible = [job for job in beat.running if caller.may_see(job.job_id)]
    members = {**vars(beat), WorkerField.RUNNING: visible}
    return WorkerView(**members, heartbeat_age_s=round(beat.age_s(), 3))
