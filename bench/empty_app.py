"""Baseline: an empty FastAPI and pydantic route with the body of `POST /v1/jobs`.

Served by uvicorn with uvloop and httptools like the gateway, but without its limits. `python -m
bench.empty_app PORT`
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Body(BaseModel):
    """Same shape as a job request."""

    task: Literal["chat", "plan", "code", "tool", "rag", "embed"]
    payload: dict[str, Any]
    ttl_s: int | None = None


class Answer(BaseModel):
    """Same shape as the response to an accepted job."""

    job_id: str


@app.post("/v1/jobs", status_code=202)
async def create(body: Body) -> Answer:
    return Answer(job_id="6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e")


def main(port: str) -> None:
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=int(port),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(sys.argv[1])
