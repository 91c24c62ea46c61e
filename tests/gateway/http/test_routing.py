"""Route classes: bodies as dependencies, checks in the order of the parameters, OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Path
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.http import problems
from gateway.http.headers import IdempotencyKey, Prefer
from gateway.http.openapi import schema
from gateway.http.problems import Problem
from gateway.http.routing import DirectRoute, JsonBody, JsonRoute, RawJsonBody, declare
from tests.support.gateway.asgi import Client


class Note(BaseModel):
    """A request body."""

    text: str


async def _known(name: Annotated[str, Path(description="A name.")]) -> str:
    if name != "known":
        raise Problem(404, "not_found", "There is no such name.")
    return name


NoteBody = Annotated[Note, Depends(JsonBody(Note, {"text": "hi"}))]
RawNote = Annotated[Any, Depends(RawJsonBody(Note, {"text": "hi"}, required=False))]


@pytest.fixture
def app() -> FastAPI:
    router = APIRouter(route_class=JsonRoute)
    direct = APIRouter(route_class=DirectRoute)

    @router.post("/notes/{name}")
    async def add(
        name: Annotated[str, Depends(_known)], body: NoteBody, prefer: Prefer = None
    ) -> Response:
        return JSONResponse({"name": name, "text": body.text, "prefer": prefer})

    @router.post("/raw", dependencies=[declare(idempotency_key=IdempotencyKey)])
    async def raw(body: RawNote) -> Response:
        return JSONResponse({"value": body})

    @direct.post("/direct/{name}", dependencies=[declare(name=Annotated[str, Path()])])
    async def answer(request: Request) -> Response:
        return JSONResponse(request.path_params["name"])

    app = FastAPI()
    app.include_router(router)
    app.include_router(direct)
    problems.install(app)
    schema.install(app)
    return app


@pytest.mark.parametrize(
    ("path", "content_type", "body", "status"),
    [
        ("/notes/other", "text/plain", b"{", 404),  # the path is checked first
        ("/notes/known", "text/plain", b"{", 415),
        ("/notes/known", "application/json", b"{", 400),
        ("/notes/known", "application/json", b"", 400),
        ("/notes/known", "application/json", b"{}", 422),
        ("/notes/known", "application/json", b'{"text":"x"}', 200),
        ("/raw", "text/plain", b"", 200),  # no body counts as an empty object
        ("/raw", "application/json", b'{"text":1}', 200),  # the endpoint validates it
        ("/raw", "text/plain", b"{}", 415),
        ("/direct/x", "text/plain", b"{", 200),
    ],
)
async def test_checks_run_in_the_order_of_the_parameters(
    app: FastAPI, path: str, content_type: str, body: bytes, status: int
) -> None:
    answer = await Client(app).send("POST", path, {"content-type": content_type}, body)
    assert answer.status == status


async def test_several_headers_of_a_list_are_all_read(app: FastAPI) -> None:
    headers = [("content-type", "application/json"), ("prefer", "wait=1"), ("prefer", "x")]
    answer = await Client(app).send("POST", "/notes/known", headers, b'{"text":"x"}')
    assert answer.json()["prefer"] == ["wait=1", "x"]


def test_openapi_comes_from_the_signature(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    note, raw, direct = (
        paths[each]["post"] for each in ("/notes/{name}", "/raw", "/direct/{name}")
    )
    assert [each["name"] for each in note["parameters"]] == ["name", "Prefer"]
    assert note["parameters"][1]["schema"]["type"] == "string"
    assert note["requestBody"]["required"] is True
    [media] = note["requestBody"]["content"].values()
    assert set(media["schema"]["properties"]) == {"text"}
    assert media["example"] == {"text": "hi"}
    assert raw["requestBody"]["required"] is False
    assert [each["name"] for each in raw["parameters"]] == ["Idempotency-Key"]
    assert [each["name"] for each in direct["parameters"]] == ["name"]
