"""`GET /v1/trail`: what was done with administrative rights, and by whom."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request

from common.access.audit_log import NEWEST
from gateway.admin.dlq.models import DeadLetterIdStr
from gateway.http.openapi.schema import problem_responses
from gateway.state import state_of


class AuditEntryView(BaseModel):
    """Something that was done with administrative rights, or tried."""

    id: str = Field(examples=["1760000000000-0"])
    ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    who: str = Field(description="A key's id, or `local`.", examples=["k3x9q2ab"])
    name: str = Field(description="The key's name then.", examples=["shop front"])
    action: str = Field(examples=["key.create"])
    target: str = Field(examples=["k7y2m1zz"])
    request_id: str
    remote: str = Field(description="The address it came from.", examples=["192.0.2.7"])


class AuditLogPage(BaseModel):
    """The trail, newest first."""

    items: list[AuditEntryView]
    next: str | None = Field(
        description="Pass it as `before` for the next page; null when there is none.",
        examples=[None],
    )


router = APIRouter(tags=["keys"])


@router.get(
    "/v1/trail",
    summary="Read the trail of administrative actions",
    responses=problem_responses(
        _422="A parameter is out of its range.",
        _503="Redis does not answer, or what is to be done cannot be written down.",
    ),
)
async def read_trail(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="Most entries in the answer.")] = 50,
    before: Annotated[
        DeadLetterIdStr | None,
        Query(description="Only those older than this: the last page's `next`."),
    ] = None,
) -> AuditLogPage:
    """Newest first. An entry is written before the deed, so it tells also what then failed."""
    found = await state_of(request).access.audit_log.page(before or NEWEST, limit + 1)
    items = [AuditEntryView(**asdict(entry)) for entry in found[:limit]]
    return AuditLogPage(items=items, next=items[-1].id if len(found) > limit else None)
