"""`GET /v1/trail`: what was done with administrative rights, and by whom."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from common.access.audit_log import NEWEST
from gateway.admin.dlq.models import DeadLetterIdStr
from gateway.auth.key_models import AuditEntryView, AuditLogPage
from gateway.auth.key_routes import READ_AUDIT_LOG
from gateway.state import state_of

router = APIRouter(tags=["keys"])


@router.get("/v1/trail", summary="Read the trail of administrative actions", **READ_AUDIT_LOG)
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
