"""What OpenAPI says of the routes of documents."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from common.contracts.rag import DEFAULT_NAMESPACE
from gateway.features.rag.models import (
    EXAMPLE_DOCUMENT,
    AddDocumentResponse,
    DocumentName,
    DocumentRequest,
    NamespaceName,
)
from gateway.http.headers import IdempotencyKey
from gateway.http.openapi.schema import problem_responses
from gateway.http.routing import JsonBody, declare
from gateway.jobs.models import SubmitJobResponse

_AWAY = "Redis does not answer."
_MISFIT = "A name or a parameter is none."
_BUSY = "The queue is full, or the key has used up its rate or its quota; see Retry-After."
#: `gateway.jobs.submit` reads it.
_IDEMPOTENT = [declare(idempotency_key=IdempotencyKey)]
#: What a body may be, beside JSON: the file itself.
FILE_TYPES = ("text/plain", "text/markdown", "text/html", "application/pdf")

NamespacePath = Annotated[
    NamespaceName, Path(description="Where documents are kept.", examples=[DEFAULT_NAMESPACE])
]
DocumentPath = Annotated[DocumentName, Path(description="Its id.", examples=["handbook"])]

LIST: dict[str, Any] = {"responses": problem_responses(_422=_MISFIT, _503=_AWAY)}
READ: dict[str, Any] = {
    "responses": problem_responses(_404="No such document.", _422=_MISFIT, _503=_AWAY)
}
TERMS = LIST
NAMESPACES: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}


ADD: dict[str, Any] = {
    "responses": {
        201: {
            "description": "With `Prefer: wait`: it can be found from now on.",
            "model": AddDocumentResponse,
        },
        **problem_responses(
            _400="The body is not JSON or empty, or the Idempotency-Key is invalid.",
            _403="The key is not allowed to submit jobs of this task.",
            _413="The document is too long; see MAX_DOCUMENT_BYTES.",
            _415="The body is neither JSON nor of a type that can be read.",
            _422="The body or a name does not fit; or, with `Prefer: wait`, the document cannot "
            "be read.",
            _429=_BUSY,
            _502="With `Prefer: wait`: the job has failed.",
            _503="Redis does not answer, or the host is short of memory or too hot.",
        ),
    },
    "dependencies": _IDEMPOTENT,
    "openapi_extra": {
        "requestBody": JsonBody(DocumentRequest, EXAMPLE_DOCUMENT).openapi(FILE_TYPES)
    },
}
DELETE: dict[str, Any] = {
    "responses": {
        202: {"description": "It will be gone soon: the job's id.", "model": SubmitJobResponse},
        **problem_responses(
            _400="The Idempotency-Key is invalid.",
            _403="The key is not allowed to submit jobs of this task.",
            _404="No such document.",
            _422=_MISFIT,
            _429=_BUSY,
            _502="The job has failed.",
            _503="Redis does not answer, or the host is short of memory or too hot.",
        ),
    },
    "dependencies": _IDEMPOTENT,
}
SEARCH: dict[str, Any] = {
    "responses": {
        202: {"description": "It takes longer: the job's id.", "model": SubmitJobResponse},
        **problem_responses(
            _400="The Idempotency-Key is invalid.",
            _403="The key may not ask for this task.",
            _413="The question is too long.",
            _422=_MISFIT,
            _429=_BUSY,
            _502="The job has failed.",
            _503="Redis does not answer, or the host is short of memory or too hot.",
        ),
    },
    "dependencies": _IDEMPOTENT,
}
