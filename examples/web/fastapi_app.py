"""A FastAPI application whose slow work runs in Sluice: `uvicorn fastapi_app:app --port 8000`.

It submits a job in a request, answers 202 with the job id, and passes the job's events on to the
browser. The browser needs no API key, because only this application calls the gateway, at
SLUICE_URL and with the key in SLUICE_API_KEY.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from sluice import AsyncSluice, Event, Refused, Unreachable

#: `retries=0`: a request of the browser should fail fast instead of waiting for the gateway.
sluice = AsyncSluice(retries=0)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with sluice:
        yield


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    """Body of a submission."""

    text: str = Field(min_length=1, max_length=10_000)


@app.post("/answers", status_code=202)
async def submit(
    question: Question,
    response: Response,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, str]:
    """Submit a job. A repeated request with the same Idempotency-Key gets the same job."""
    job = await sluice.submit("chat", {"text": question.text}, idempotency_key=idempotency_key)
    response.headers["Location"] = app.url_path_for("read", job_id=job.id)
    return {"job_id": job.id}


@app.get("/answers/{job_id}")
async def read(job_id: str) -> dict[str, Any]:
    job = await sluice.job(job_id).get()
    return {"status": job.status, "result": job.result, "error": job.error}


@app.get("/answers/{job_id}/events")
async def watch(
    job_id: str, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Pass the events on. A browser that reconnects sends the id of the last one it received."""
    handle = sluice.job(job_id)
    await handle.get()  # an unknown job is a 404, before the stream begins

    async def lines() -> AsyncIterator[str]:
        async for event in handle.stream(after=last_event_id):
            yield frame(event)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def frame(event: Event) -> str:
    """The event in the format of SSE. Notices of the gateway itself have no id."""
    position = f"id: {event.id}\n" if event.id else ""
    return f"{position}event: {event.type}\ndata: {json.dumps(event.data)}\n\n"


@app.exception_handler(Refused)
async def refused(request: Request, error: Refused) -> JSONResponse:
    """404 and 429 are passed on; other refusals are a fault of this application."""
    status = error.status if error.status in (404, 429, 503) else 500
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    return JSONResponse({"error": error.code}, status, headers)


@app.exception_handler(Unreachable)
async def unreachable(request: Request, error: Unreachable) -> JSONResponse:
    return JSONResponse({"error": "queue_unreachable"}, 503, {"Retry-After": "2"})
