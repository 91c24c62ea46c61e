"""`POST /v1/chat/completions`: a chat job, answered as OpenAI does, at once or in chunks."""

from __future__ import annotations

import time

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.jobs import Task
from gateway.json_body import read_json
from gateway.openai.asking import Asked, answered, ask
from gateway.openai.chat_answer import ChatCompletion, chat_result, completion
from gateway.openai.chat_request import REFUSED, ChatRequest
from gateway.openai.chat_stream import ChatStream
from gateway.openai.checking import checked
from gateway.openai.following import ClientLeft
from gateway.openai.job_errors import CANCELED
from gateway.openai.known_models import check_model
from gateway.openai.paths import CHAT
from gateway.openai.streaming import StreamedAnswer
from gateway.openapi import direct_route
from gateway.openapi_openai import CREATE_COMPLETION

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["openai"])


@router.post(
    CHAT, response_model=ChatCompletion, summary="Go on with a conversation", **CREATE_COMPLETION
)
async def create_completion(request: Request) -> Response:
    """A chat job, waited for. With `stream` its answer comes while it is made. Who leaves before
    the end cancels the job, unless it has an `Idempotency-Key` to come again with."""
    wanted = checked(ChatRequest, await read_json(request), REFUSED)
    model = await check_model(request, Task.CHAT, wanted.model)
    asked = await ask(request, Task.CHAT, wanted.payload())
    if wanted.stream:
        return StreamedAnswer(asked, _chunks(asked, wanted, model), asked.headers)
    try:
        done = await answered(request, asked)
    except ClientLeft:
        return Response(None, CANCELED)
    result, in_parallel = chat_result(done.result), wanted.parallel_tool_calls is not False
    body = completion(asked.job_id, done.created_s, result, model, in_parallel=in_parallel)
    return Response(body, 200, asked.headers, _JSON)


def _chunks(asked: Asked, wanted: ChatRequest, model: str) -> ChatStream:
    options = wanted.stream_options
    return ChatStream(
        asked.job_id,
        int(time.time()),
        model,
        include_usage=bool(options and options.include_usage),
        in_parallel=wanted.parallel_tool_calls is not False,
        rounds_continue=wanted.runs_tools,
        withheld=wanted.runs_tools and wanted.wants_json,
    )
