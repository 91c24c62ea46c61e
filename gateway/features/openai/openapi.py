"""What OpenAPI says of the routes of OpenAI's API."""

from __future__ import annotations

from typing import Any

from gateway.features.openai.chat.request import EXAMPLE_CHAT, ChatRequest
from gateway.features.openai.embeddings import EXAMPLE_EMBEDDINGS, EmbeddingsRequest
from gateway.http.openapi.schema import (
    header_parameter,
    path_parameter,
    problem_responses,
    request_body,
)

_AWAY = "Redis does not answer."
_HEADERS = [
    header_parameter(
        "Idempotency-Key",
        "Any unique text; the same request under the same key makes one job only, which goes on "
        "without its client.",
        "order-1742",
    ),
    header_parameter(
        "traceparent",
        "W3C Trace Context: the trace that the job is part of; what is none is ignored.",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
]
_CHUNK: dict[str, Any] = {
    "type": "object",
    "properties": {"data": {"type": "string", "contentMediaType": "application/json"}},
}
_ANSWERS = problem_responses(
    _400="The body is no JSON, or does not fit the schema, or asks for what cannot be honoured; "
    "`param` names the member. Or the model refused the request.",
    _403="The key may not submit jobs and read them, or not of this task.",
    _404="There is no such model; the message lists those that there are.",
    _413="The body or the payload is too long.",
    _415="The body is not declared as JSON.",
    _422="The Idempotency-Key came with another request.",
    _429="The queue is full, or the key has used up its rate or its quota; Retry-After says when "
    "to come back.",
    _499="Somebody canceled the job.",
    _500="The job failed; `code` is the kind of its error.",
    _502="The model failed, or said what makes no sense.",
    _503="Redis does not answer, the box is short of memory or too hot, too many answers are "
    "waited for, there is no model, or the gateway is stopping.",
    _504="The job, or the model, took too long.",
)

CREATE_COMPLETION: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The answer; with `stream`, chunks of it and at last `data: [DONE]`.",
            "content": {
                "text/event-stream": {
                    "itemSchema": _CHUNK,
                    "example": 'data: {"id":"chatcmpl-…","object":"chat.completion.chunk",…}\n\n'
                    "data: [DONE]\n\n",
                }
            },
        },
        **_ANSWERS,
    },
    "openapi_extra": {
        "parameters": _HEADERS,
        "requestBody": request_body(ChatRequest, EXAMPLE_CHAT),
    },
}
CREATE_EMBEDDINGS: dict[str, Any] = {
    "responses": _ANSWERS,
    "openapi_extra": {
        "parameters": _HEADERS,
        "requestBody": request_body(EmbeddingsRequest, EXAMPLE_EMBEDDINGS),
    },
}
LIST_MODELS: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}
READ_MODEL: dict[str, Any] = {
    "responses": problem_responses(_404="There is no such model.", _503=_AWAY),
    "openapi_extra": {
        "parameters": [path_parameter("model", "Its name.", "smollm2-135m-instruct")]
    },
}
