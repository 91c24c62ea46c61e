"""`GET /v1/models` and `GET /v1/models/{model}`: what live workers can be asked for."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from common.contracts.jobs import Task
from gateway.openai.known_models import KnownModel, models_of, no_such_model
from gateway.openai.paths import MODEL, MODELS
from gateway.openapi import direct_route
from gateway.openapi_openai import LIST_MODELS, READ_MODEL
from gateway.state import state_of

_JSON = "application/json"

router = APIRouter(route_class=direct_route(APIRoute), tags=["openai"])


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
    def of(cls, known: KnownModel) -> ModelView:
        """A model that is known."""
        return cls(id=known.name, created=known.since_s, sluice=ModelTasks(tasks=list(known.tasks)))


class ModelList(BaseModel):
    """Every model, by name; none where no worker says which one it asks."""

    object: Literal["list"] = "list"
    data: list[ModelView]


@router.get(MODELS, response_model=ModelList, summary="Which models are there?", **LIST_MODELS)
async def list_models(request: Request) -> Response:
    """The models that live workers ask, for chats and for vectors."""
    known = await models_of(request).all(state_of(request))
    return _answer(ModelList(data=[ModelView.of(model) for model in known]))


@router.get(MODEL, response_model=ModelView, summary="Is a model there?", **READ_MODEL)
async def read_model(request: Request) -> Response:
    """One of them."""
    name: str = request.path_params["model"]
    known = await models_of(request).all(state_of(request))
    for model in known:
        if model.name == name:
            return _answer(ModelView.of(model))
    raise no_such_model(name, [model.name for model in known])


def _answer(view: BaseModel) -> Response:
    return Response(view.model_dump_json(), 200, {}, _JSON)
