"""Route classes, and the fast path: checks in the order of the parameters, equal responses."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Path
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sluice.gateway.http import problems
from sluice.gateway.http.headers import IdempotencyKey, Prefer
from sluice.gateway.http.openapi import schema
from sluice.gateway.http.problems import Problem
from sluice.gateway.http.routing import DirectRoute, JsonBody, JsonRoute, RawJsonBody, declare
from tests.support.gateway.asgi import JSON, Client
from tests.support.gateway.harness import CHAT, Gateway


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
    document = app.openapi()
    paths = document["paths"]
    note, raw, direct = (
        paths[each]["post"] for each in ("/notes/{name}", "/raw", "/direct/{name}")
    )
    assert [each["name"] for each in note["parameters"]] == ["name", "Prefer"]
    assert note["parameters"][1]["schema"]["type"] == "string"
    assert note["requestBody"]["required"] is True
    [media] = note["requestBody"]["content"].values()
    assert media["schema"]["$ref"] == "#/components/schemas/Note"
    assert set(document["components"]["schemas"]["Note"]["properties"]) == {"text"}
    assert media["example"] == {"text": "hi"}
    assert raw["requestBody"]["required"] is False
    assert [each["name"] for each in raw["parameters"]] == ["Idempotency-Key"]
    assert [each["name"] for each in direct["parameters"]] == ["name"]


pytestmark = pytest.mark.fakeredis_only


REQUESTS: dict[str, tuple[bytes | object, dict[str, str]]] = {
    "good": (CHAT, JSON),
    "ttl": ({**CHAT, "ttl_s": 5}, JSON),
    "options": ({**CHAT, "timeout_s": 5, "max_attempts": 2, "backoff": {}}, JSON),
    "delay": ({**CHAT, "delay_s": 60}, JSON),
    "two times": ({**CHAT, "delay_s": 60, "run_at": "2020-01-01T00:00:00Z"}, JSON),
    "own request id": (CHAT, {**JSON, "x-request-id": "mine"}),
    "own trace": (CHAT, {**JSON, "traceparent": f"00-{'4b' * 16}-{'f0' * 8}-01"}),
    "unknown task": ({**CHAT, "task": "dance"}, JSON),
    "no payload": ({"task": "chat"}, JSON),
    "payload is a list": ({**CHAT, "payload": []}, JSON),
    "ttl is a float": ({**CHAT, "ttl_s": 1.5}, JSON),
    "unknown member": ({**CHAT, "x": 1}, JSON),
    "no object": ([], JSON),
    "no JSON": (b"{", JSON),
    "empty": (b"", JSON),
    "not UTF-8": (b'{"task":"\xff"}', JSON),
    "deep": (b"[" * 1000 + b"]" * 1000, JSON),
    "too long": (b'{"task":"chat","payload":{"x":"' + b"x" * 200_000 + b'"}}', JSON),
    "much too long": (b" " * 300_000, JSON),
    "no type": (CHAT, {"content-type": ""}),
    "a form": (CHAT, {"content-type": "application/x-www-form-urlencoded"}),
    "bad key": (CHAT, {**JSON, "idempotency-key": "\x7f"}),
    "wait, in vain": (CHAT, {**JSON, "prefer": "wait=0"}),
}


class WithoutFastPath:
    """The same app without the fast path."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await FastAPI.__call__(self._app, scope, receive, send)


def comparable(answer: Any) -> Any:
    headers = {
        name: value
        for name, value in answer.headers
        if name not in ("location", "link", "x-request-id")
    }
    body = answer.json()
    body.pop("request_id", None)
    if "job_id" in body:
        body["job_id"] = len(body["job_id"])
    return answer.status, headers, sorted(name for name, _ in answer.headers), body


async def test_the_fast_path_and_fastapi_give_the_same_response(gateway: Gateway) -> None:
    without_fast_path = Client(WithoutFastPath(gateway.app))
    for name, (body, headers) in REQUESTS.items():
        by_fast_path = await gateway.client.post(body, headers)
        by_fastapi = await without_fast_path.post(body, headers)
        assert comparable(by_fast_path) == comparable(by_fastapi), name
        if "x-request-id" in headers:
            ids = {answer.header("x-request-id") for answer in (by_fast_path, by_fastapi)}
            assert ids == {"mine"}
