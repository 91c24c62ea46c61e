"""`GET /v1/rag/{ns}/search`: a question to the documents, asked as a job and answered at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.jobs import JobField
from common.contracts.rag import SearchMode
from gateway import rag_jobs
from gateway.openapi_rag import SEARCH, NamespacePath
from gateway.rag_models import SearchView

Mode = Literal[SearchMode.AUTO, SearchMode.LEXICAL, SearchMode.VECTOR]

router = APIRouter(tags=["documents"])


@router.get("/v1/rag/{ns}/search", response_model=SearchView, summary="Search documents", **SEARCH)
async def search_documents(
    request: Request,
    ns: NamespacePath,
    q: Annotated[str, Query(min_length=1, max_length=4000, description="What is looked for.")],
    top_k: Annotated[int, Query(ge=1, le=50, description="Most passages in the answer.")] = 5,
    mode: Annotated[Mode, Query(description="How passages are found.")] = SearchMode.AUTO,
    answer: Annotated[bool, Query(description="Whether to answer in words, too.")] = False,
) -> Response:
    """The passages that fit best, with their places in the documents."""
    payload: dict[str, Any] = {"query": q, "ns": ns, "top_k": top_k, "mode": mode.value}
    if answer:
        payload["answer"] = True
    made = await rag_jobs.start(request, payload, brief=True)
    job = await rag_jobs.ended(request, made, rag_jobs.USUAL_WAIT_S)
    if job is None:
        return rag_jobs.accepted(made)
    view = {JobField.JOB_ID.value: made.job_id, **codec.payload_object(job.result)}
    headers = {**made.headers, "Cache-Control": "no-store"}
    return Response(codec.dumps(view), 200, headers, "application/json")
