"""Route classes, and JSON bodies as FastAPI dependencies.

FastAPI reads a declared body before anything else, and answers 422 where this API answers 400
(malformed JSON) or 415 (not declared as JSON). `JsonBody` is a dependency instead: checks run in
the order of the route's dependencies, plain parameters are validated after them, and `JsonRoute`
adds the body to the OpenAPI document.

FastAPI's dependency machinery costs several times what a submit costs in Redis. A `DirectRoute`
keeps FastAPI's routing, error handling and documentation and skips the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, get_args

from fastapi import Depends, params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from sluice.gateway.http.body import parse_body, read_json, read_json_if_any
from sluice.gateway.http.problems import problem_response

Model = TypeVar("Model", bound=BaseModel)
_JSON = "application/json"
_REF = "#/components/schemas/{model}"
#: Errors of every route with a JsonBody, by status; a description by the route takes precedence.
BODY_ERRORS: Final = {
    400: "The body is not JSON, or nested too deeply.",
    413: "The body is too long.",
    415: "The Content-Type of the body is not JSON.",
    422: "The body does not match the schema.",
}


class JsonBody(Generic[Model]):
    """A dependency that reads the body as JSON and validates it against a model."""

    def __init__(
        self, model: type[Model], example: Mapping[str, Any], *, required: bool = True
    ) -> None:
        """`required` False: a request without a body counts as an empty object."""
        self._model = model
        self._example = example
        self._required = required

    async def __call__(self, request: Request) -> Any:
        return self.validate(request, await self.read(request))

    async def read(self, request: Request) -> Any:
        return await (read_json if self._required else read_json_if_any)(request)

    def validate(self, request: Request, value: Any) -> Model:
        """The model; raises the problem of an invalid value."""
        return parse_body(self._model, value)

    def openapi(self, other_types: Sequence[str] = ()) -> dict[str, Any]:
        """The request body in the OpenAPI document. `other_types`: of files instead of JSON."""
        schema = model_reference(self._model)
        content: dict[str, Any] = {_JSON: {"schema": schema, "example": dict(self._example)}}
        for media_type in other_types:
            content[media_type] = {"schema": {"type": "string", "format": "binary"}}
        return {"required": self._required, "content": content}


def reference(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A reference to a schema, which becomes a component of the OpenAPI document."""
    nested = schema.pop("$defs", {})
    return {"$ref": _REF.format(model=name), "$defs": {name: schema, **nested}}


def model_reference(model: type[BaseModel]) -> dict[str, Any]:
    return reference(model.__name__, model.model_json_schema(ref_template=_REF))


class RawJsonBody(JsonBody[Model]):
    """The same without validation, for routes that check something else first."""

    async def __call__(self, request: Request) -> Any:
        return await self.read(request)


class JsonRoute(APIRoute):
    """A route whose JsonBody, with its errors, is part of the OpenAPI document."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        for dependant in self.dependant.dependencies:
            if isinstance(dependant.call, JsonBody):
                errors = {
                    str(status): problem_response(description)
                    for status, description in BODY_ERRORS.items()
                    if status not in self.responses
                }
                body = {"requestBody": dependant.call.openapi(), "responses": errors}
                self.openapi_extra = {**(self.openapi_extra or {}), **body}


class DirectRoute(JsonRoute):
    """A route that calls the endpoint with the request, without FastAPI's dependencies.

    Its `dependencies` only describe what the endpoint reads; see `declare`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


def declare(**parameters: Any) -> Any:
    """A dependency that adds parameters to the OpenAPI document; the endpoint reads them itself.

    `parameters`: annotations with `Path`, `Query` or `Header`, by name.
    """

    async def declaration(**values: object) -> None:
        """FastAPI calls it with the declared values."""

    declaration.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if _is_path(annotation) else None,
                annotation=annotation,
            )
            for name, annotation in parameters.items()
        ]
    )
    return Depends(declaration)


def _is_path(annotation: Any) -> bool:
    return any(isinstance(each, params.Path) for each in get_args(annotation))
