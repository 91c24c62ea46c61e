"""`POST /v1/chat/completions`: a chat job, answered as OpenAI does, at once or in chunks."""

from __future__ import annotations

import time
from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.jobs import Task
from gateway.feature import Feature
from gateway.features.openai.chat.request import ChatRequest
from gateway.features.openai.chat.response import ChatCompletion, chat_result, completion
from gateway.features.openai.chat.stream import ChatStream, ChatStreamResponse
from gateway.features.openai.embeddings import EmbeddingList, embeddings
from gateway.features.openai.errors import CANCELED
from gateway.features.openai.job_runner import (
    ClientDisconnected,
    PendingJob,
    submit_job,
    wait_for_result,
)
from gateway.features.openai.models import (
    ModelCatalog,
    ServedModel,
    check_model,
    model_not_found,
    models_of,
)
from gateway.features.openai.openapi import (
    CREATE_COMPLETION,
    CREATE_EMBEDDINGS,
    LIST_MODELS,
    READ_MODEL,
    ChatBody,
    EmbeddingsBody,
    ModelPath,
)
from gateway.http.paths import OPENAI_CHAT, OPENAI_EMBEDDINGS, OPENAI_MODEL, OPENAI_MODELS
from gateway.http.routing import JsonRoute
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(route_class=JsonRoute, tags=["openai"])


@router.post(
    OPENAI_CHAT,
    response_model=ChatCompletion,
    summary="Go on with a conversation",
    **CREATE_COMPLETION,
)
async def create_completion(request: Request, body: ChatBody) -> Response:
    """A chat job, waited for. With `stream` its answer comes while it is made. Who leaves before
    the end cancels the job, unless it has an `Idempotency-Key` to come again with."""
    model = await check_model(request, Task.CHAT, body.model)
    asked = await submit_job(request, Task.CHAT, body.payload())
    if body.stream:
        return ChatStreamResponse(asked, _chunks(asked, body, model), asked.headers)
    try:
        done = await wait_for_result(request, asked)
    except ClientDisconnected:
        return Response(None, CANCELED)
    result, in_parallel = chat_result(done.result), body.parallel_tool_calls is not False
    answer = completion(asked.job_id, done.created_s, result, model, in_parallel=in_parallel)
    return Response(answer, 200, asked.headers, _JSON)


def _chunks(asked: PendingJob, wanted: ChatRequest, model: str) -> ChatStream:
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


@router.post(
    OPENAI_EMBEDDINGS,
    response_model=EmbeddingList,
    summary="Make vectors of texts",
    **CREATE_EMBEDDINGS,
)
async def create_embeddings(request: Request, body: EmbeddingsBody) -> Response:
    """An embed job, waited for. Who leaves before the end cancels it, unless it has an
    `Idempotency-Key` to come again with."""
    await check_model(request, Task.EMBED, body.model)
    asked = await submit_job(request, Task.EMBED, body.payload())
    try:
        done = await wait_for_result(request, asked)
    except ClientDisconnected:
        return Response(None, CANCELED)
    return Response(embeddings(asked.job_id, body, done.result), 200, asked.headers, _JSON)


class ModelTasks(BaseModel):
    """What only we tell."""

    tasks: list[Task] = Field(description="What it is for.")


class ModelView(BaseModel):
    """A model."""

    id: str = Field(examples=["smollm2-135m-instruct"])
    object: Literal["model"] = "model"
    created: int = Field(description="Since when a worker asks it, Unix seconds.")
    owned_by: str = Field("sluice", description="Always the same.")
    sluice: ModelTasks

    @classmethod
    def of(cls, known: ServedModel) -> ModelView:
        return cls(id=known.name, created=known.since_s, sluice=ModelTasks(tasks=list(known.tasks)))


class ModelList(BaseModel):
    """Every model, by name; none where no worker says which one it asks."""

    object: Literal["list"] = "list"
    data: list[ModelView]


@router.get(
    OPENAI_MODELS, response_model=ModelList, summary="Which models are there?", **LIST_MODELS
)
async def list_models(request: Request) -> Response:
    """The models that live workers ask, for chats and for vectors."""
    known = await models_of(request).all(state_of(request))
    return _answer(ModelList(data=[ModelView.of(model) for model in known]))


@router.get(OPENAI_MODEL, response_model=ModelView, summary="Is a model there?", **READ_MODEL)
async def read_model(request: Request, model: ModelPath) -> Response:
    """One of them."""
    known = await models_of(request).all(state_of(request))
    for served in known:
        if served.name == model:
            return _answer(ModelView.of(served))
    raise model_not_found(model, [served.name for served in known])


def _answer(view: BaseModel) -> Response:
    return Response(view.model_dump_json(), 200, {}, _JSON)


FEATURE: Final = Feature([router], "openai", build=lambda context: ModelCatalog())
