"""Models and requests of the document API (`/v1/rag`)."""

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
#: Seconds the gateway is asked to wait for ingestion; after that the client follows the job.
INGEST_WAIT_S = 20.0


@dataclass(frozen=True)
class Document:
    """Metadata of a document in a namespace."""

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
    """A matching passage of a document."""

    document_id: str
    title: str
    score: float
    start: int
    end: int
    quote: str
    raw: Mapping[str, Any] = raw_field()


@dataclass(frozen=True)
class SearchResult:
    """The hits of a search, best first. `text` is the generated answer, if one was requested."""

    hits: Sequence[SearchHit]
    text: str | None = None
    mode: str = ""
    raw: Mapping[str, Any] = raw_field()


def namespaces() -> Request[list[str]]:
    return build_request("GET", "/v1/rag", _read_namespaces)


def _read_namespaces(response: Response) -> list[str]:
    items = require(response.json(), "items")
    if not isinstance(items, list):
        raise BadAnswer(
            "unexpected response from the gateway: no list of namespaces; check the URL"
        )
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
    """Adds a text or the bytes of a file. The response is an IngestResult, or a running job."""
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
    """Parse the response to `add`, or the result of its job."""
    return parse_model(IngestResult, data)


def list_documents(
    namespace: str, limit: int | None, before: str | None
) -> Request[Page[Document]]:
    """Lists documents, most recently changed first."""
    query = {"limit": limit, "before": before}
    return build_request("GET", _documents_path(namespace), page_reader(Document), query=query)


def get(namespace: str, document_id: str) -> Request[Document]:
    return build_request("GET", _document_path(namespace, document_id), model_reader(Document))


def text(namespace: str, document_id: str, start: int, end: int | None) -> Request[str]:
    path = f"{_document_path(namespace, document_id)}/text"
    query = {"start": start or None, "end": end}
    return build_request("GET", path, _read_text, query=query)


def _read_text(response: Response) -> str:
    return response.body.decode("utf-8", "replace")


def delete(namespace: str, document_id: str) -> Request[str | None]:
    """Deletes a document. The response is a job id if the deletion is still running, else None."""
    return build_request("DELETE", _document_path(namespace, document_id), _read_job_id_of_202)


def _read_job_id_of_202(response: Response) -> str | None:
    return require_text(response.json(), "job_id") if response.status == 202 else None


def search(
    namespace: str, q: str, top_k: int | None, mode: str | None, answer: bool
) -> Request[dict[str, Any]]:
    """Searches a namespace. The response is a SearchResult, or a running job."""
    path = f"/v1/rag/{path_segment(namespace)}/search"
    query = {"q": q, "top_k": top_k, "mode": mode, "answer": answer or None}
    return build_request("GET", path, read_object, query=query)


def parse_search(data: Any) -> SearchResult:
    """Parse the response to `search`, or the result of its job."""
    hits = parse_models(SearchHit, require(data, "hits"))
    text, mode = data.get("text"), data.get("mode")
    return SearchResult(
        hits,
        text if isinstance(text, str) else None,
        mode if isinstance(mode, str) else "",
        data,
    )
