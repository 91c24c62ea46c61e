"""OpenAPI descriptions of the routes of documents."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from sluice.common.contracts.rag import DEFAULT_NAMESPACE
from sluice.gateway.features.rag.models import (
    EXAMPLE_DOCUMENT,
    AddDocumentResponse,
    DocumentName,
    DocumentRequest,
    NamespaceName,
)
from sluice.gateway.http.headers import IdempotencyKey
from sluice.gateway.http.openapi.schema import problem_responses
from sluice.gateway.http.routing import JsonBody, declare
from sluice.gateway.jobs.models import JobReference

_AWAY = "Redis does not answer."
_MISFIT = "Invalid name or query parameter."
_BUSY = "The queue is full, or the key has exceeded its rate or quota; see Retry-After."
#: `sluice.gateway.jobs.submit` reads it.
_IDEMPOTENT = [declare(idempotency_key=IdempotencyKey)]
#: Media types of files that may be sent instead of JSON.
FILE_TYPES = ("text/plain", "text/markdown", "text/html", "application/pdf")

NamespacePath = Annotated[
    NamespaceName, Path(description="Namespace of the documents.", examples=[DEFAULT_NAMESPACE])
]
DocumentPath = Annotated[
    DocumentName, Path(description="Id of the document.", examples=["handbook"])
]

LIST: dict[str, Any] = {"responses": problem_responses(_422=_MISFIT, _503=_AWAY)}
READ: dict[str, Any] = {
    "responses": problem_responses(_404="No such document.", _422=_MISFIT, _503=_AWAY)
}
TERMS = LIST
NAMESPACES: dict[str, Any] = {"responses": problem_responses(_503=_AWAY)}


ADD: dict[str, Any] = {
    "responses": {
        201: {
            "description": "With `Prefer: wait`: the document was added and can be searched.",
            "model": AddDocumentResponse,
        },
        202: {"description": "The document was accepted; only `job_id`."},
        **problem_responses(
            _400="The body is not JSON or empty, or the Idempotency-Key is invalid.",
            _403="The key is not allowed to submit jobs of this task.",
            _413="The document is too long; see MAX_DOCUMENT_BYTES.",
            _415="The Content-Type is neither JSON nor that of a supported file.",
            _422="The body or a name is not valid; or, with `Prefer: wait`, the document cannot be "
            "parsed.",
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
        202: {
            "description": "The deletion has not ended yet; the id of its job.",
            "model": JobReference,
        },
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
        202: {
            "description": "The search has not ended yet; the id of its job.",
            "model": JobReference,
        },
        **problem_responses(
            _400="The Idempotency-Key is invalid.",
            _403="The key is not allowed to submit jobs of this task.",
            _413="The query is too long.",
            _422=_MISFIT,
            _429=_BUSY,
            _502="The job has failed.",
            _503="Redis does not answer, or the host is short of memory or too hot.",
        ),
    },
    "dependencies": _IDEMPOTENT,
}
