"""`GET /v1/jobs`: the newest jobs, and those among them that are looked for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.access_record import tail_of
from common.contracts.jobs import Status, Task
from gateway.callers import Caller, caller_of
from gateway.listing import CURSOR, JobLister, Place, Search, Wanted
from gateway.models import JobPage, Time
from gateway.openapi_jobs import LIST_JOBS
from gateway.problems import Problem
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(tags=["jobs"])


@router.get("/v1/jobs", response_model=JobPage, summary="List jobs", **LIST_JOBS)
async def list_jobs(
    request: Request,
    status: Annotated[
        list[Status] | None, Query(description="Only those that stand so; may repeat.")
    ] = None,
    task: Annotated[list[Task] | None, Query(description="Only of this task; may repeat.")] = None,
    q: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=200,
            description="Only those whose id begins with this, or whose payload, result or error "
            "has it somewhere, in small or capital letters.",
        ),
    ] = None,
    since: Annotated[
        Time | None, Query(description="Only those accepted then or later: Unix ms or RFC 3339.")
    ] = None,
    until: Annotated[Time | None, Query(description="Only those accepted before.")] = None,
    tenant: Annotated[
        str | None,
        Query(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="Only those of this tenant."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Most jobs in the answer.")] = 50,
    cursor: Annotated[
        str | None, Query(pattern=f"^{CURSOR}$", description="`next` of the page before.")
    ] = None,
) -> Response:
    """The newest jobs first, a line each. The oldest leave the list: see JOB_INDEX_MAX."""
    state = state_of(request)
    if not state.settings.job_index_max:
        raise Problem(404, "listing_off", "This gateway keeps no list of jobs; see JOB_INDEX_MAX.")
    wanted = Wanted(
        may_see=_Eyes(caller_of(request), tenant),
        statuses=frozenset(each.value for each in status or ()),
        tasks=frozenset(each.value for each in task or ()),
        search=None if q is None else Search(q),
        since_ms=since or 0,
    )
    page = await JobLister(state.lines).page(wanted, limit, _before(cursor, until))
    found = {
        "jobs": page.jobs,
        "next": None if page.next is None else page.next.cursor,
        "looked_at": page.looked_at,
    }
    return Response(codec.dumps(found), 200, media_type=_JSON)


class _Eyes:
    """What a caller may see, of one tenant or of all."""

    def __init__(self, caller: Caller, tenant: str | None) -> None:
        self._caller = caller
        self._tail = tail_of(tenant or "")

    def __call__(self, job_id: str) -> bool:
        return self._caller.may_see(job_id) and job_id.endswith(self._tail)


def _before(cursor: str | None, until: int | None) -> Place | None:
    """Where the page begins: behind the last one, and before a time."""
    bounds = [] if cursor is None else [Place.from_cursor(cursor)]
    if until is not None:
        bounds.append(Place(until, ""))
    return min(bounds, default=None)
