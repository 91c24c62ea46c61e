"""`/v1/rag`: documents, search and terms by namespace.

The gateway reads documents itself; everything else is a `rag` job.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sluice.common import codec
from sluice.common.contracts.jobs import JobField
from sluice.common.contracts.rag import NAME_CHARS, UPLOAD_FIELD, RagKeys, RagOperation, SearchMode
from sluice.common.features.rag.documents import RagReader
from sluice.common.features.rag.ontology import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, OntologyReader
from sluice.gateway.auth.callers import caller_of
from sluice.gateway.features.rag import jobs
from sluice.gateway.features.rag.models import (
    TITLE_CHARS,
    AddDocumentResponse,
    DocumentName,
    DocumentPage,
    DocumentRequest,
    DocumentView,
    NamespaceList,
    SearchView,
    TermList,
)
from sluice.gateway.features.rag.openapi import (
    ADD,
    DELETE,
    FILE_TYPES,
    LIST,
    NAMESPACES,
    READ,
    SEARCH,
    TERMS,
    DocumentPath,
    NamespacePath,
)
from sluice.gateway.http.body import parse_body, read_json
from sluice.gateway.http.problems import Problem
from sluice.gateway.jobs.lookup import WaitSeconds
from sluice.gateway.jobs.submit import DocumentUpload, Submission
from sluice.gateway.state import state_of

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
#: Most characters of a text in one response.
MOST_CHARS = 1_000_000

#: Longest Content-Type of a document.
MOST_TYPE = 200

router = APIRouter(tags=["documents"])


@router.get("/v1/rag", response_model=NamespaceList, summary="List namespaces", **NAMESPACES)
async def list_namespaces(request: Request) -> Response:
    """Returns the namespaces that have documents."""
    names = await _reader(request).namespaces(caller_of(request).tenant)
    return Response(codec.dumps({"items": names}), 200, media_type=_JSON)


@router.post(
    "/v1/rag/{ns}/documents",
    status_code=202,
    response_model=AddDocumentResponse,
    summary="Add or replace a document",
    **ADD,
)
async def add_document(
    request: Request,
    ns: NamespacePath,
    wait_s: WaitSeconds,
    id: Annotated[
        DocumentName | None, Query(description="Id of the document, if the body is a file.")
    ] = None,
    title: Annotated[
        str | None,
        Query(max_length=TITLE_CHARS, description="Title of the document, if the body is a file."),
    ] = None,
) -> Response:
    """Adds a document, sent as JSON or as a file. A document with the same id is replaced."""
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() in FILE_TYPES and len(declared) <= MOST_TYPE:
        about = {"id": id, "title": title, "media_type": declared}
        submission = await _take_file(request, ns, about)
    else:
        submission = await _take_json(request, ns)
    job = await jobs.wait_for_end(request, submission, wait_s)
    if job is None:
        return jobs.accepted_response(submission)
    view = {JobField.JOB_ID: submission.job_id, **codec.parse_payload(job.result)}
    url = f"/v1/rag/{ns}/documents/{view.get('document_id', '')}"
    return Response(codec.dumps(view), 201, {**submission.headers, "Location": url}, _JSON)


async def _take_json(request: Request, ns: str) -> Submission:
    wanted = parse_body(DocumentRequest, await read_json(request))
    document = wanted.model_dump(mode="json", exclude_none=True)
    payload = _ingest(ns, document)
    state = state_of(request)
    if len(codec.dumps(payload)) <= state.settings.max_payload_bytes:
        return await jobs.start(request, payload, brief=False)
    text = document.pop("text").encode()
    document["media_type"] += "; charset=utf-8"
    return await _start_upload(request, _ingest(ns, document), text)


async def _take_file(request: Request, ns: str, about: dict[str, Any]) -> Submission:
    try:
        data = await request.body()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The connection closed within the body.") from None
    if not data:
        raise Problem(400, "empty_document", "The body is empty; send the document itself.")
    document = {name: value for name, value in about.items() if value is not None}
    return await _start_upload(request, _ingest(ns, document), data)


async def _start_upload(request: Request, payload: dict[str, Any], data: bytes) -> Submission:
    state = state_of(request)
    if len(data) > state.settings.max_document_bytes:
        raise Problem(
            413,
            "document_too_large",
            f"The document has {len(data)} bytes; {state.settings.max_document_bytes} are allowed.",
        )
    upload = DocumentUpload(state.client, data, state.settings.job_ttl_s, state.settings.keys.tag)
    payload[UPLOAD_FIELD] = upload.digest  # also part of the fingerprint of an Idempotency-Key
    return await jobs.start(request, payload, brief=False, upload=upload)


def _ingest(ns: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"op": RagOperation.INGEST, "ns": ns, "document": document}


@router.get("/v1/rag/{ns}/documents", response_model=DocumentPage, summary="List documents", **LIST)
async def list_documents(
    request: Request,
    ns: NamespacePath,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of documents.")] = 50,
    before: Annotated[
        str,
        Query(
            pattern="^[0-9]{0,18}$", description="Only older entries: `next` of the previous page."
        ),
    ] = "",
) -> Response:
    """Returns documents, last changed first; empty for an unknown namespace."""
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
    summary="Get a document",
    **READ,
)
async def get_document(request: Request, ns: NamespacePath, document_id: DocumentPath) -> Response:
    """Returns the metadata of a document."""
    record = await _reader(request).get(_keys(request, ns), document_id)
    if record is None:
        raise _document_not_found()
    return Response(codec.dumps(record.view()), 200, media_type=_JSON)


@router.get(
    "/v1/rag/{ns}/documents/{document_id}/text",
    response_class=Response,
    summary="Get the text of a document",
    **READ,
)
async def get_document_text(
    request: Request,
    ns: NamespacePath,
    document_id: DocumentPath,
    start: Annotated[int, Query(ge=0, le=1 << 31, description="First character, from 0.")] = 0,
    end: Annotated[int | None, Query(ge=0, le=1 << 31, description="End, exclusive.")] = None,
) -> Response:
    """Returns the text that the offsets of hits and citations refer to."""
    last = start + MOST_CHARS if end is None else min(end, start + MOST_CHARS)
    text = await _reader(request).text(_keys(request, ns), document_id, start, last)
    if text is None:
        raise _document_not_found()
    return Response(text.encode(errors="replace"), 200, media_type=_TEXT)


@router.delete(
    "/v1/rag/{ns}/documents/{document_id}",
    status_code=204,
    response_class=Response,
    summary="Delete a document",
    **DELETE,
)
async def delete_document(
    request: Request, ns: NamespacePath, document_id: DocumentPath, wait_s: WaitSeconds
) -> Response:
    """Deletes a document from the index."""
    if await _reader(request).get(_keys(request, ns), document_id) is None:
        raise _document_not_found()
    payload = {"op": RagOperation.DELETE, "ns": ns, "document_id": document_id}
    submission = await jobs.start(request, payload, brief=True)
    job = await jobs.wait_for_end(request, submission, wait_s, jobs.DEFAULT_WAIT_S)
    if job is None:
        return jobs.accepted_response(submission)
    return Response(None, 204, submission.headers)


def _reader(request: Request) -> RagReader:
    state = state_of(request)
    return RagReader(state.client, state.settings.keys.tag)


def _keys(request: Request, ns: str) -> RagKeys:
    return _reader(request).keys(ns, caller_of(request).tenant)


def _document_not_found() -> Problem:
    return Problem(404, "document_not_found", "There is no such document in this namespace.")


@router.get("/v1/rag/{ns}/ontology", response_model=TermList, summary="List terms", **TERMS)
async def list_terms(
    request: Request,
    ns: NamespacePath,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE_SIZE, description="Maximum number of terms.")
    ] = DEFAULT_PAGE_SIZE,
    after: Annotated[
        str,
        Query(
            max_length=NAME_CHARS,
            description="Only terms after this one: `next` of the previous page.",
        ),
    ] = "",
) -> Response:
    """Returns the terms that workflows have added, by name; empty for an unknown namespace."""
    state = state_of(request)
    keys = RagKeys(ns, caller_of(request).tenant, state.settings.keys.tag)
    page = await OntologyReader(state.client).list(keys, after, limit)
    body = {
        "items": [entry.view() for entry in page.entries],
        "total": page.total,
        "next": page.next,
    }
    return Response(codec.dumps(body), 200, media_type="application/json")


Mode = Literal[SearchMode.AUTO, SearchMode.LEXICAL, SearchMode.VECTOR]


@router.get("/v1/rag/{ns}/search", response_model=SearchView, summary="Search documents", **SEARCH)
async def search_documents(
    request: Request,
    ns: NamespacePath,
    wait_s: WaitSeconds,
    q: Annotated[str, Query(min_length=1, max_length=4000, description="The query.")],
    top_k: Annotated[int, Query(ge=1, le=50, description="Maximum number of passages.")] = 5,
    mode: Annotated[Mode, Query(description="Search mode.")] = SearchMode.AUTO,
    answer: Annotated[bool, Query(description="Whether to generate an answer.")] = False,
) -> Response:
    """Returns the best matching passages with their positions in the documents."""
    payload: dict[str, Any] = {"query": q, "ns": ns, "top_k": top_k, "mode": mode.value}
    if answer:
        payload["answer"] = True
    submission = await jobs.start(request, payload, brief=True)
    job = await jobs.wait_for_end(request, submission, wait_s, jobs.DEFAULT_WAIT_S)
    if job is None:
        return jobs.accepted_response(submission)
    view = {JobField.JOB_ID: submission.job_id, **codec.parse_payload(job.result)}
    headers = {**submission.headers, "Cache-Control": "no-store"}
    return Response(codec.dumps(view), 200, headers, "application/json")
