"""`GET /v1/trail`: the audit log of administrative actions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request

from sluice.common.access.audit_log import NEWEST
from sluice.common.contracts.access import AuditAction
from sluice.gateway.admin.dlq.models import DeadLetterIdStr
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.state import state_of


class AuditEntryView(BaseModel):
    """An administrative action, or an attempt at one."""

    id: str = Field(examples=["1760000000000-0"])
    ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    who: str = Field(description="Id of the key, or `local`.", examples=["k3x9q2ab"])
    name: str = Field(description="Name of the key at that time.", examples=["shop front"])
    action: str = Field(examples=[AuditAction.KEY_CREATE.value])
    target: str = Field(examples=["k7y2m1zz"])
    request_id: str
    remote: str = Field(description="Address of the client.", examples=["192.0.2.7"])


class AuditLogPage(BaseModel):
    """A page of the audit log, newest entries first."""

    items: list[AuditEntryView]
    next: str | None = Field(
        description="Pass it as `before` for the next page; null on the last page.",
        examples=[None],
    )


router = APIRouter(tags=["audit-log"])


@router.get(
    "/v1/trail",
    summary="Get the audit log",
    responses=problem_responses(
        _422="Invalid query parameter.",
        _503="Redis does not answer.",
    ),
)
async def get_audit_log(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of entries.")] = 50,
    before: Annotated[
        DeadLetterIdStr | None,
        Query(description="Only entries older than this: `next` of the previous page."),
    ] = None,
) -> AuditLogPage:
    """Returns entries, newest first. An entry is written before the action, so it also records
    actions that then failed."""
    found = await state_of(request).access.audit_log.page(before or NEWEST, limit + 1)
    items = [AuditEntryView(**asdict(entry)) for entry in found[:limit]]
    return AuditLogPage(items=items, next=items[-1].id if len(found) > limit else None)
