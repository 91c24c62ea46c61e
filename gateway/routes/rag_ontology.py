"""`/v1/rag/{ns}/ontology`: the terms that a namespace knows, and their other names. Read only."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from common import codec
from common.contracts.rag import NAME_CHARS, RagKeys
from common.rag_ontology import MOST_PER_PAGE, PAGE, OntologyReader
from gateway.callers import caller_of
from gateway.openapi_rag import TERMS, NamespacePath
from gateway.rag_models import TermList
from gateway.state import state_of

router = APIRouter(tags=["documents"])


@router.get("/v1/rag/{ns}/ontology", response_model=TermList, summary="List terms", **TERMS)
async def list_terms(
    request: Request,
    ns: NamespacePath,
    limit: Annotated[
        int, Query(ge=1, le=MOST_PER_PAGE, description="Most terms in the answer.")
    ] = PAGE,
    after: Annotated[
        str,
        Query(max_length=NAME_CHARS, description="Only those behind it: the last page's `next`."),
    ] = "",
) -> Response:
    """Terms that workflows have added, by name; none where there is no such namespace."""
    state = state_of(request)
    keys = RagKeys(ns, caller_of(request).tenant, state.settings.keys.tag)
    page = await OntologyReader(state.client).list(keys, after, limit)
    body = {
        "items": [entry.view() for entry in page.entries],
        "total": page.total,
        "next": page.next,
    }
    return Response(codec.dumps(body), 200, media_type="application/json")
