"""`/v1/rag/{ns}/documents`: documents by namespace. Reading is done here, all else is a job's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from common import codec
from common.contracts.jobs import JobField
from common.contracts.rag import UPLOAD, RagKeys, RagOperation
from common.rag_store import RagReader
from gateway import problems, rag_jobs
from gateway.callers import caller_of
from gateway.json_body import read_json
from gateway.openapi_rag import (
    ADD,
    DELETE,
    FILE_TYPES,
    LIST,
    NAMESPACES,
    READ,
    DocumentPath,
    NamespacePath,
)
from gateway.problems import Problem
from gateway.rag_models import (
    TITLE_CHARS,
    DocumentName,
    DocumentPage,
    DocumentRequest,
    DocumentView,
    NamespaceList,
)
from gateway.state import state_of
from gateway.submitting import Submitted
from gateway.uploads import Upload

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
#: More of a text than this is read piece by piece.
MOST_CHARS = 1_000_000

#: A longer Content-Type is none of a document's.
MOST_TYPE = 200

router = APIRouter(tags=["documents"])


@router.get("/v1/rag", response_model=NamespaceList, summary="List namespaces", **NAMESPACES)
async def list_namespaces(request: Request) -> Response:
    """Namespaces that hold documents."""
    names = await _reader(request).namespaces(caller_of(request).tenant)
    return Response(codec.dumps({"items": names}), 200, media_type=_JSON)


@router.post("/v1/rag/{ns}/documents", status_code=202, summary="Add or replace a document", **ADD)
async def add_document(
    request: Request,
    ns: NamespacePath,
    id: Annotated[
        DocumentName | None, Query(description="Where the body is the file itself: its name.")
    ] = None,
    title: Annotated[
        str | None, Query(max_length=TITLE_CHARS, description="Likewise: its title, for people.")
    ] = None,
) -> Response:
    """Take a document in, as JSON or as the file itself; the same id again replaces it."""
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() in FILE_TYPES and len(declared) <= MOST_TYPE:
        about = {"id": id, "title": title, "media_type": declared}
        made = await _take_file(request, ns, about)
    else:
        made = await _take_json(request, ns)
    job = await rag_jobs.ended(request, made)
    if job is None:
        return rag_jobs.accepted(made)
    view = {JobField.JOB_ID.value: made.job_id, **codec.payload_object(job.result)}
    place = f"/v1/rag/{ns}/documents/{view.get('document_id', '')}"
    return Response(codec.dumps(view), 201, {**made.headers, "Location": place}, _JSON)


async def _take_json(request: Request, ns: str) -> Submitted:
    try:
        wanted = DocumentRequest.model_validate(await read_json(request))
    except ValidationError as error:
        raise problems.misfit(error) from None
    document = wanted.model_dump(mode="json", exclude_none=True)
    payload = _ingest(ns, document)
    state = state_of(request)
    if len(codec.dumps(payload)) <= state.settings.max_payload_bytes:
        return await rag_jobs.start(request, payload, brief=False)
    text = document.pop("text").encode()
    document["media_type"] += "; charset=utf-8"
    return await _start_upload(request, _ingest(ns, document), text)


async def _take_file(request: Request, ns: str, about: dict[str, Any]) -> Submitted:
    try:
        data = await request.body()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The connection closed within the body.") from None
    if not data:
        raise Problem(400, "empty_document", "The body is empty; send the document itself.")
    document = {name: value for name, value in about.items() if value is not None}
    return await _start_upload(request, _ingest(ns, document), data)


async def _start_upload(request: Request, payload: dict[str, Any], data: bytes) -> Submitted:
    state = state_of(request)
    if len(data) > state.settings.max_document_bytes:
        raise Problem(
            413,
            "document_too_large",
            f"The document has {len(data)} bytes; {state.settings.max_document_bytes} are allowed.",
        )
    upload = Upload(state.client, data, state.settings.job_ttl_s, state.settings.keys.tag)
    payload[UPLOAD] = upload.digest  # for the fingerprint of an Idempotency-Key, too
    return await rag_jobs.start(request, payload, brief=False, upload=upload)


def _ingest(ns: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"op": RagOperation.INGEST.value, "ns": ns, "document": document}


@router.get("/v1/rag/{ns}/documents", response_model=DocumentPage, summary="List documents", **LIST)
async def list_documents(
    request: Request,
    ns: NamespacePath,
    limit: Annotated[int, Query(ge=1, le=200, description="Most documents in the answer.")] = 50,
    before: Annotated[
        str, Query(pattern="^[0-9]{0,18}$", description="Only older ones: the last page's `next`.")
    ] = "",
) -> Response:
    """Documents of a namespace, the last changed first; none where there is no such namespace."""
    page = await _reader(request).list(_keys(request, ns), before, limit)
    body = {
        "items": [record.view() for record in page.records],
        "total": page.total,
        "next": page.next,
    }
    return Response(codec.dumps(body), 200, media_type=_JSON)


@router.get(
    "/v1/rag/{ns}/documents/{document_id}",
    response_model=DocumentView,
    summary="Read what is known of a document",
    **READ,
)
async def read_document(request: Request, ns: NamespacePath, document_id: DocumentPath) -> Response:
    """What is known of a document."""
    record = await _reader(request).get(_keys(request, ns), document_id)
    if record is None:
        raise _no_such_document()
    return Response(codec.dumps(record.view()), 200, media_type=_JSON)


@router.get(
    "/v1/rag/{ns}/documents/{document_id}/text",
    response_class=Response,
    summary="Read a document's text",
    **READ,
)
async def read_text(
    request: Request,
    ns: NamespacePath,
    document_id: DocumentPath,
    start: Annotated[int, Query(ge=0, le=1 << 31, description="First character, from 0.")] = 0,
    end: Annotated[int | None, Query(ge=0, le=1 << 31, description="Not included.")] = None,
) -> Response:
    """The text that spans of hits and citations count in."""
    last = start + MOST_CHARS if end is None else min(end, start + MOST_CHARS)
    text = await _reader(request).text(_keys(request, ns), document_id, start, last)
    if text is None:
        raise _no_such_document()
    return Response(text.encode(errors="replace"), 200, media_type=_TEXT)


@router.delete(
    "/v1/rag/{ns}/documents/{document_id}",
    status_code=204,
    response_class=Response,
    summary="Delete a document",
    **DELETE,
)
async def delete_document(
    request: Request, ns: NamespacePath, document_id: DocumentPath
) -> Response:
    """From now on it is not found."""
    if await _reader(request).get(_keys(request, ns), document_id) is None:
        raise _no_such_document()
    payload = {"op": RagOperation.DELETE.value, "ns": ns, "document_id": document_id}
    made = await rag_jobs.start(request, payload, brief=True)
    job = await rag_jobs.ended(request, made, rag_jobs.USUAL_WAIT_S)
    if job is None:
        return rag_jobs.accepted(made)
    return Response(None, 204, made.headers)


def _reader(request: Request) -> RagReader:
    state = state_of(request)
    return RagReader(state.client, state.settings.keys.tag)


def _keys(request: Request, ns: str) -> RagKeys:
    return _reader(request).keys(ns, caller_of(request).tenant)


def _no_such_document() -> Problem:
    return Problem(404, "document_not_found", "There is no such document in this namespace.")
