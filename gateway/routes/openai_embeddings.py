"""`POST /v1/embeddings`: an embed job, answered as OpenAI does."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.jobs import Task
from gateway.json_body import read_json
from gateway.openai.asking import answered, ask
from gateway.openai.checking import checked
from gateway.openai.embeddings import EmbeddingList, EmbeddingsRequest, embeddings
from gateway.openai.following import ClientLeft
from gateway.openai.job_errors import CANCELED
from gateway.openai.known_models import check_model
from gateway.openai.paths import EMBEDDINGS
from gateway.openapi import direct_route
from gateway.openapi_openai import CREATE_EMBEDDINGS

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["openai"])


@router.post(
    EMBEDDINGS, response_model=EmbeddingList, summary="Make vectors of texts", **CREATE_EMBEDDINGS
)
async def create_embeddings(request: Request) -> Response:
    """An embed job, waited for. Who leaves before the end cancels it, unless it has an
    `Idempotency-Key` to come again with."""
    wanted = checked(EmbeddingsRequest, await read_json(request))
    await check_model(request, Task.EMBED, wanted.model)
    asked = await ask(request, Task.EMBED, wanted.payload())
    try:
        done = await answered(request, asked)
    except ClientLeft:
        return Response(None, CANCELED)
    return Response(embeddings(asked.job_id, wanted, done.result), 200, asked.headers, _JSON)
