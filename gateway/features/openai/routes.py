"""The OpenAI API: `/v1/chat/completions`, `/v1/embeddings` and `/v1/models`."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from sluice.common.contracts.jobs import Task
from sluice.gateway.features.openai.chat.request import ChatRequest
from sluice.gateway.features.openai.chat.response import ChatCompletion, chat_result, completion
from sluice.gateway.features.openai.chat.stream import ChatStream, ChatStreamResponse
from sluice.gateway.features.openai.embeddings import EmbeddingList, embeddings
from sluice.gateway.features.openai.errors import CANCELED
from sluice.gateway.features.openai.job_runner import (
    ClientDisconnected,
    PendingJob,
    submit_job,
    wait_for_result,
)
from sluice.gateway.features.openai.models import (
    ServedModel,
    check_model,
    model_not_found,
    served_models,
)
from sluice.gateway.features.openai.openapi import (
    CREATE_COMPLETION,
    CREATE_EMBEDDINGS,
    LIST_MODELS,
    READ_MODEL,
    ChatBody,
    EmbeddingsBody,
    ModelPath,
)
from sluice.gateway.http.paths import OPENAI_CHAT, OPENAI_EMBEDDINGS, OPENAI_MODEL, OPENAI_MODELS
from sluice.gateway.http.routing import JsonRoute

_JSON = "application/json"

router = APIRouter(route_class=JsonRoute, tags=["openai"])


@router.post(
    OPENAI_CHAT,
    response_model=ChatCompletion,
    summary="Create a chat completion",
    **CREATE_COMPLETION,
)
async def create_chat_completion(request: Request, body: ChatBody) -> Response:
    """Submits a chat job and waits for its result. With `stream` the answer is sent while it is
    generated. If the client disconnects, the job is canceled, unless the request has an
    `Idempotency-Key` with which it can be repeated."""
    model = await check_model(request, Task.CHAT, body.model)
    pending = await submit_job(request, Task.CHAT, body.payload())
    if body.stream:
        return ChatStreamResponse(pending, _chunks(pending, body, model), pending.headers)
    try:
        done = await wait_for_result(request, pending)
    except ClientDisconnected:
        return Response(None, CANCELED)
    result, in_parallel = chat_result(done.result), body.parallel_tool_calls is not False
    answer = completion(pending.job_id, done.created_s, result, model, in_parallel=in_parallel)
    return Response(answer, 200, pending.headers, _JSON)


def _chunks(pending: PendingJob, body: ChatRequest, model: str) -> ChatStream:
    options = body.stream_options
    return ChatStream(
        pending.job_id,
        int(time.time()),
        model,
        include_usage=bool(options and options.include_usage),
        in_parallel=body.parallel_tool_calls is not False,
        rounds_continue=body.runs_tools,
        withheld=body.runs_tools and body.wants_json,
    )


@router.post(
    OPENAI_EMBEDDINGS,
    response_model=EmbeddingList,
    summary="Create embeddings",
    **CREATE_EMBEDDINGS,
)
async def create_embeddings(request: Request, body: EmbeddingsBody) -> Response:
    """Submits an embed job and waits for its result. If the client disconnects, the job is
    canceled, unless the request has an `Idempotency-Key` with which it can be repeated."""
    await check_model(request, Task.EMBED, body.model)
    pending = await submit_job(request, Task.EMBED, body.payload())
    try:
        done = await wait_for_result(request, pending)
    except ClientDisconnected:
        return Response(None, CANCELED)
    return Response(embeddings(pending.job_id, body, done.result), 200, pending.headers, _JSON)


class ModelTasks(BaseModel):
    """Members that OpenAI's API does not have."""

    tasks: list[Task] = Field(description="The tasks it is used for.")


class ModelView(BaseModel):
    """A model."""

    id: str = Field(examples=["smollm2-135m-instruct"])
    object: Literal["model"] = "model"
    created: int = Field(description="Start of the oldest worker that uses it, Unix seconds.")
    owned_by: str = Field("sluice", description="Always `sluice`.")
    sluice: ModelTasks

    @classmethod
    def of(cls, known: ServedModel) -> ModelView:
        return cls(id=known.name, created=known.since_s, sluice=ModelTasks(tasks=list(known.tasks)))


class ModelList(BaseModel):
    """Models by name; empty if no worker reports its model."""

    object: Literal["list"] = "list"
    data: list[ModelView]


@router.get(OPENAI_MODELS, response_model=ModelList, summary="List models", **LIST_MODELS)
async def list_models(request: Request) -> Response:
    """Returns the models that live workers use for chat and embeddings."""
    known = await served_models(request)
    return _answer(ModelList(data=[ModelView.of(model) for model in known]))


@router.get(OPENAI_MODEL, response_model=ModelView, summary="Get a model", **READ_MODEL)
async def get_model(request: Request, model: ModelPath) -> Response:
    """Returns a model that live workers use."""
    known = await served_models(request)
    for served in known:
        if served.name == model:
            return _answer(ModelView.of(served))
    raise model_not_found(model, [served.name for served in known])


def _answer(view: BaseModel) -> Response:
    return Response(view.model_dump_json(), 200, {}, _JSON)
