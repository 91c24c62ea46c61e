"""What OpenAPI says of the routes of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path

from gateway.features.openai.chat.request import EXAMPLE_CHAT, UNSUPPORTED_MEMBERS, ChatRequest
from gateway.features.openai.embeddings import EXAMPLE_EMBEDDINGS, EmbeddingsRequest
from gateway.features.openai.validation import OpenAIBody
from gateway.http.headers import IdempotencyKey, Traceparent
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import declare

ChatBody = Annotated[
    ChatRequest, Depends(OpenAIBody(ChatRequest, EXAMPLE_CHAT, UNSUPPORTED_MEMBERS))
]
EmbeddingsBody = Annotated[
    EmbeddingsRequest, Depends(OpenAIBody(EmbeddingsRequest, EXAMPLE_EMBEDDINGS))
]
ModelPath = Annotated[str, Path(description="Its name.", examples=["smollm2-135m-instruct"])]

_AWAY = "Redis does not answer."
#: `gateway.jobs.submit` reads them.
_HEADERS = [declare(idempotency_key=IdempotencyKey, traceparent=Traceparent)]
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
    _415="The Content-Type of the body is not JSON.",
    _422="The Idempotency-Key was used with another request.",
    _429="The queue is full, or the key has used up its rate or its quota; Retry-After says when "
    "to come back.",
    _499="Somebody canceled the job.",
    _500="The job failed; `code` is the kind of its error.",
    _502="The model failed, or said what makes no sense.",
    _503="Redis does not answer, the host is short of memory or too hot, too many answers are "
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
    "dependencies": _HEADERS,
}
CREATE_EMBEDDINGS: dict[str, Any] = {"responses": _ANSWERS, "dependencies": _HEADERS}
LIST_MODELS: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}
READ_MODEL: dict[str, Any] = {
    "responses": problem_responses(_404="There is no such model.", _503=_AWAY)
}
