"""Documents: their models, and the requests about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.api.parsing import (
    Page,
    model_reader,
    page_reader,
    parse_model,
    parse_models,
    raw_field,
    read_object,
    require,
    require_text,
)
from sluice.errors import BadAnswer
from sluice.transport.request import (
    Request,
    Response,
    build_request,
    drop_none,
    new_idempotency_key,
    path_segment,
)

DEFAULT_NAMESPACE = "default"
#: How long the gateway is asked to wait for a document before its job is followed instead.
INGEST_WAIT_S = 20.0


@dataclass(frozen=True)
class Document:
    """A document of a namespace."""

    id: str
    title: str
    media_type: str
    chars: int
    chunks: int
    added_ts: int
    embedder: str = ""
    sha256: str = ""
    revision: str = ""
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class IngestResult:
    """The outcome of adding a document."""

    document_id: str
    chunks: int
    chars: int
    embedder: str = ""
    replaced: bool = False
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class SearchHit:
    """A passage that matches."""

    document_id: str
    title: str
    score: float
    start: int
    end: int
    quote: str
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class SearchResult:
    """The hits of a search, best first; `text` is the answer if one was asked for."""

    hits: Sequence[SearchHit]
    text: str | None = None
    mode: str = ""
    raw: Mapping[str, Any] = raw_field()


def namespaces() -> Request[list[str]]:
    """Lists the namespaces that have documents."""
    return build_request("GET", "/v1/rag", _read_namespaces)


def _read_namespaces(response: Response) -> list[str]:
    items = require(response.json(), "items")
    if not isinstance(items, list):
        raise BadAnswer("the gateway's answer has no list of names; check the URL")
    return [str(item) for item in items]


def _documents_path(namespace: str) -> str:
    return f"/v1/rag/{path_segment(namespace)}/documents"


def _document_path(namespace: str, document_id: str) -> str:
    return f"{_documents_path(namespace)}/{path_segment(document_id)}"


def add(
    namespace: str,
    content: str | bytes,
    *,
    document_id: str | None = None,
    title: str | None = None,
    media_type: str | None = None,
) -> Request[dict[str, Any]]:
    """Adds a text, or a file's bytes; the response is an IngestResult, or a job that goes on."""
    key = new_idempotency_key()
    path = _documents_path(namespace)
    if isinstance(content, str):
        options = {"text": content, "id": document_id, "title": title, "media_type": media_type}
        body = drop_none(options)
        return build_request("POST", path, read_object, body=body, key=key, wait_s=INGEST_WAIT_S)
    request = build_request(
        "POST",
        path,
        read_object,
        query={"id": document_id, "title": title},
        headers={"Content-Type": media_type or "text/plain"},
        key=key,
        wait_s=INGEST_WAIT_S,
    )
    return replace(request, body=content)


def parse_ingest(data: Any) -> IngestResult:
    """The outcome in the response to `add`, or in the result of its job."""
    return parse_model(IngestResult, data)


def list_documents(
    namespace: str, limit: int | None, before: str | None
) -> Request[Page[Document]]:
    """Lists documents, the last changed first."""
    query = {"limit": limit, "before": before}
    return build_request("GET", _documents_path(namespace), page_reader(Document), query=query)


def get(namespace: str, document_id: str) -> Request[Document]:
    """Reads a document's metadata."""
    return build_request("GET", _document_path(namespace, document_id), model_reader(Document))


def text(namespace: str, document_id: str, start: int, end: int | None) -> Request[str]:
    """Reads a document's text."""
    path = f"{_document_path(namespace, document_id)}/text"
    query = {"start": start or None, "end": end}
    return build_request("GET", path, _read_text, query=query)


def _read_text(response: Response) -> str:
    return response.body.decode("utf-8", "replace")


def delete(namespace: str, document_id: str) -> Request[str | None]:
    """Deletes a document; the response is the id of the job that still has to do it, if any."""
    return build_request("DELETE", _document_path(namespace, document_id), _read_job_id_of_202)


def _read_job_id_of_202(response: Response) -> str | None:
    return require_text(response.json(), "job_id") if response.status == 202 else None


def search(
    namespace: str, q: str, top_k: int | None, mode: str | None, answer: bool
) -> Request[dict[str, Any]]:
    """Searches a namespace; the response is a SearchResult, or a job that goes on."""
    path = f"/v1/rag/{path_segment(namespace)}/search"
    query = {"q": q, "top_k": top_k, "mode": mode, "answer": answer or None}
    return build_request("GET", path, read_object, query=query)


def parse_search(data: Any) -> SearchResult:
    """The hits in the response to `search`, or in the result of its job."""
    hits = parse_models(SearchHit, require(data, "hits"))
    text, mode = data.get("text"), data.get("mode")
    return SearchResult(
        hits,
        text if isinstance(text, str) else None,
        mode if isinstance(mode, str) else "",
        data,
    )
