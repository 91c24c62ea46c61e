"""`/v1/tokens`: create read tokens."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.contracts.jobs import JobField
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.auth.read_tokens import DEFAULT_TTL_S, LONGEST_TTL_S, ReadClaims, ReadTarget
from sluice.gateway.features.workflows import lookup as workflows
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.problems import FieldProblem, Problem
from sluice.gateway.http.routing import JsonBody, JsonRoute
from sluice.gateway.jobs.lookup import check_job_id, find_job
from sluice.gateway.state import state_of

LONGEST_ID: Final = 128
_EXAMPLE: Final[dict[str, Any]] = {
    JobField.JOB_ID: "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e",
    JobField.TTL_S: DEFAULT_TTL_S,
}
_JobId = Annotated[str, Field(strict=True, min_length=1, max_length=LONGEST_ID)]


class TokenRequest(BaseModel):
    """What the token may read: a job or a workflow job."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    job_id: _JobId | None = Field(None, description="Id of a job.")
    workflow_job_id: _JobId | None = Field(
        None, description="Id of a workflow job, instead of `job_id`."
    )
    ttl_s: Annotated[int, Field(strict=True, ge=1, le=LONGEST_TTL_S)] = Field(
        DEFAULT_TTL_S, description="Seconds until the token expires."
    )


class TokenView(BaseModel):
    """A new token."""

    token: str = Field(
        description="For the query parameter `token`, or `Authorization: Bearer`.",
        examples=["rd1~job~6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e~1760000600~k3x9q2ab~…"],
    )
    expires_ts: int = Field(
        description="When the token expires, in Unix milliseconds: never later than the API key.",
        examples=[1_760_000_600_000],
    )


CREATE_TOKEN: dict[str, Any] = {
    "responses": problem_responses(
        _403="The key lacks the scope `jobs:read`, or a dashboard session sent the request.",
        _404="The job does not exist or has expired.",
        _503="Redis does not answer.",
    )
}
TokenBody = Annotated[TokenRequest, Depends(JsonBody(TokenRequest, _EXAMPLE))]

router = APIRouter(route_class=JsonRoute, tags=["tokens"])


@router.post(
    "/v1/tokens",
    status_code=201,
    response_model=TokenView,
    summary="Create a read token",
    **CREATE_TOKEN,
)
async def create_token(request: Request, body: TokenBody) -> Response:
    """Creates a token with which a web page may read and watch one job, without an API key."""
    caller = caller_of(request)
    if caller.session:  # a token would outlive the session
        raise Problem(
            403,
            "session_not_allowed",
            "A dashboard session may not create tokens; send an API key.",
        )
    target = await _target(request, body)
    expires_s = int(time.time()) + body.ttl_s
    if caller.record is not None and caller.record.expires_ms is not None:
        expires_s = min(expires_s, caller.record.expires_ms // 1000)
    claims = ReadClaims(target, expires_s, caller.key_id)
    token = await state_of(request).access.read_tokens.issue(claims)
    view = TokenView(token=token, expires_ts=expires_s * 1000)
    return Response(view.model_dump_json(), 201, media_type="application/json")


async def _target(request: Request, body: TokenRequest) -> ReadTarget:
    """What the token is for; raises 404 unless it exists and the caller may see it."""
    if body.job_id is not None and body.workflow_job_id is None:
        job = await find_job(state_of(request), check_job_id(request, body.job_id))
        return ReadTarget.job(job.job_id)
    if body.workflow_job_id is not None and body.job_id is None:
        workflow_job = await workflows.find_job(request, body.workflow_job_id)
        return ReadTarget.workflow(workflow_job.job_id)
    detail = "Give either job_id or workflow_job_id."
    raise Problem(422, "invalid_request", detail, [FieldProblem(pointer="", detail=detail)])
