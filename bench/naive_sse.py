"""The naive event server: every client blocks in its own XREAD.

Shares no code with Sluice on purpose. `python -m bench.naive_sse REDIS_URL PORT`
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from redis.asyncio import Redis
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TERMINAL = ("done", "error", "canceled")
BLOCK_MS = 15_000


def build(url: str) -> Starlette:
    redis = Redis.from_url(url, decode_responses=True)

    async def tail(job_id: str) -> AsyncIterator[dict[str, str]]:
        yield {"event": "hello", "data": json.dumps({"job_id": job_id})}
        last_id = "0"
        while True:
            streams = await redis.xread({f"job:{job_id}:events": last_id}, block=BLOCK_MS)
            for _, entries in streams or ():
                for last_id, fields in entries:  # noqa: B007
                    event = {**fields, "data": json.loads(fields["data"])}
                    yield {"event": fields["type"], "data": json.dumps(event)}
                    if fields["type"] in TERMINAL:
                        return

    async def events(request: Request) -> Response:
        job_id: str = request.path_params["job_id"]
        if not await redis.exists(f"job:{job_id}"):
            return Response(status_code=404)
        return EventSourceResponse(tail(job_id))

    return Starlette(routes=[Route("/v1/jobs/{job_id}/events", events)])


def main(url: str, port: str) -> None:
    uvicorn.run(
        build(url), host="127.0.0.1", port=int(port), log_config=None, access_log=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
