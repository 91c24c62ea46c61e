"""`/healthz` (the process lives) and `/readyz` (it can serve)."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel

from common.aio import wait_for
from common.errors import StoreUnavailable
from gateway.http.problems import ProblemView, store_unavailable
from gateway.state import state_of

READY_TIMEOUT_S = 2.0

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """All is well."""

    ok: bool = True


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> Health:
    """Answers as long as the event loop turns."""
    return Health()


@router.get(
    "/readyz",
    summary="Can it serve?",
    responses={503: {"description": "Redis does not take writes.", "model": ProblemView}},
)
async def readyz(request: Request) -> Health:
    """Answers 200 only while Redis takes writes."""
    try:
        await wait_for(READY_TIMEOUT_S, state_of(request).store.check_writable())
    except StoreUnavailable as error:
        raise store_unavailable(str(error)) from None
    except asyncio.TimeoutError:
        raise store_unavailable(f"no answer within {READY_TIMEOUT_S:.0f} s") from None
    return Health()
