# Generated from sluice/aio/documents.py; edit that file.
"""Documents: add, search and delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.api import documents as api
from sluice.api.documents import DEFAULT_NAMESPACE, Document, IngestResult, SearchResult

if TYPE_CHECKING:
    from sluice.sync.client import Sluice


class Documents:
    """The documents of a gateway; `Sluice.rag`."""

    def __init__(self, sluice: Sluice) -> None:
        self._sluice = sluice

    def namespaces(self) -> list[str]:
        """The namespaces that have documents."""
        return self._sluice.send(api.namespaces())

    def add(
        self,
        content: str | bytes,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        document_id: str | None = None,
        title: str | None = None,
        media_type: str | None = None,
        timeout_s: float | None = None,
    ) -> IngestResult:
        """Add a text, or a file's bytes with its media type; waits until it can be found.

        The same id again replaces the document. Raises JobFailed if it cannot be read.
        """
        request = api.add(
            namespace, content, document_id=document_id, title=title, media_type=media_type
        )
        data = self._sluice.send(request)
        if "document_id" not in data:  # it takes longer than a request may
            data = self._sluice.job(str(data.get("job_id"))).result(timeout_s)
        return api.parse_ingest(data)

    def list(self, namespace: str = DEFAULT_NAMESPACE) -> Iterator[Document]:
        """All documents of a namespace, the last changed first."""
        return self._sluice.paginate(lambda before: api.list_documents(namespace, None, before))

    def get(self, document_id: str, namespace: str = DEFAULT_NAMESPACE) -> Document:
        """Read a document's metadata."""
        return self._sluice.send(api.get(namespace, document_id))

    def text(
        self,
        document_id: str,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        start: int = 0,
        end: int | None = None,
    ) -> str:
        """A document's text, in characters from `start` to `end`; a million at most."""
        return self._sluice.send(api.text(namespace, document_id, start, end))

    def search(
        self,
        q: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        top_k: int | None = None,
        mode: str | None = None,
        answer: bool = False,
        timeout_s: float | None = None,
    ) -> SearchResult:
        """Matching passages, best first; with `answer` also an answer in words."""
        data = self._sluice.send(api.search(namespace, q, top_k, mode, answer))
        if "hits" not in data:
            data = self._sluice.job(str(data.get("job_id"))).result(timeout_s)
        return api.parse_search(data)

    def delete(
        self,
        document_id: str,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Delete a document."""
        job_id = self._sluice.send(api.delete(namespace, document_id))
        if job_id is not None:
            self._sluice.job(job_id).result(timeout_s)
