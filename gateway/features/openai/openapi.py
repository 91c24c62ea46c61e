"""OpenAPI descriptions of the OpenAI routes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path

from sluice.gateway.features.openai.chat.request import (
    EXAMPLE_CHAT,
    UNSUPPORTED_MEMBERS,
    ChatRequest,
)
from sluice.gateway.features.openai.embeddings import EXAMPLE_EMBEDDINGS, EmbeddingsRequest
from sluice.gateway.features.openai.validation import OpenAIBody
from sluice.gateway.http.headers import IdempotencyKey, Traceparent
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import declare, reference

ChatBody = Annotated[
    ChatRequest, Depends(OpenAIBody(ChatRequest, EXAMPLE_CHAT, UNSUPPORTED_MEMBERS))
]
EmbeddingsBody = Annotated[
    EmbeddingsRequest, Depends(OpenAIBody(EmbeddingsRequest, EXAMPLE_EMBEDDINGS))
]
ModelPath = Annotated[
    str, Path(description="Name of the model.", examples=["smollm2-135m-instruct"])
]

_AWAY = "Redis does not answer."
#: `sluice.gateway.jobs.submit` reads them.
_HEADERS = [declare(idempotency_key=IdempotencyKey, traceparent=Traceparent)]
_CHUNK: dict[str, Any] = reference(
    "ChatCompletionEvent",
    {
        "description": "One event of the stream: a chunk as JSON, or `[DONE]`.",
        "type": "object",
        "properties": {"data": {"type": "string", "contentMediaType": "application/json"}},
    },
)
_ANSWERS = problem_responses(
    _400="The body is not JSON, does not match the schema, or uses an unsupported option "
    "(`param` names the member); or the model refused the request.",
    _403="The key is not allowed to submit and read jobs of this task.",
    _404="There is no such model; the message lists the available ones.",
    _413="The body or the payload is too long.",
    _422="The Idempotency-Key was used with another request.",
    _429="The queue is full, or the key has exceeded its rate or quota; see Retry-After.",
    _499="The job was canceled.",
    _500="The job failed; `code` is the kind of its error.",
    _502="The model failed, or its answer is not valid.",
    _503="Redis does not answer, the host is short of memory or too hot, too many requests wait "
    "for answers, there is no model, or the gateway is stopping.",
    _504="The job or the model took too long.",
)

CREATE_COMPLETION: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The completion; with `stream`, chunks of it and then `data: [DONE]`.",
            "content": {
                "text/event-stream": {
                    "schema": _CHUNK,
                    "example": 'data: {"id":"chatcmpl-…","object":"chat.completion.chunk",…}\n\n'
                    "data: [DONE]\n\n",
                }
            },
        },
        **_ANSWERS,
    },
    "dependencies": _HEADERS,
}
CREATE_EMBEDDINGS: dict[str, Any] = {"responses": _ANSWERS, "dependencies": _HEADERS}
LIST_MODELS: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}
READ_MODEL: dict[str, Any] = {
    "responses": problem_responses(_404="There is no such model.", _503=_AWAY)
}
