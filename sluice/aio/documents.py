"""The document API: add, search and delete documents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sluice.api import documents as api
from sluice.api.documents import DEFAULT_NAMESPACE, Document, IngestResult, SearchResult

if TYPE_CHECKING:
    from sluice.aio.client import AsyncSluice


class Documents:
    """The document API, available as `AsyncSluice.rag`."""

    def __init__(self, sluice: AsyncSluice) -> None:
        self._sluice = sluice

    async def namespaces(self) -> list[str]:
        """List the namespaces that have documents."""
        return await self._sluice.send(api.namespaces())

    async def add(
        self,
        content: str | bytes,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        document_id: str | None = None,
        title: str | None = None,
        media_type: str | None = None,
        timeout_s: float | None = None,
    ) -> IngestResult:
        """Add a text, or the bytes of a file with its media type; waits until it is searchable.

        Adding the same id again replaces the document. Raises JobFailed if it cannot be parsed.
        """
        request = api.add(
            namespace, content, document_id=document_id, title=title, media_type=media_type
        )
        data = await self._sluice.send(request)
        if "document_id" not in data:  # still running when the request timed out
            data = await self._sluice.job(str(data.get("job_id"))).result(timeout_s)
        return api.parse_ingest(data)

    def list(self, namespace: str = DEFAULT_NAMESPACE) -> AsyncIterator[Document]:
        """Iterate over the documents of a namespace, most recently changed first."""
        return self._sluice.paginate(lambda before: api.list_documents(namespace, None, before))

    async def get(self, document_id: str, namespace: str = DEFAULT_NAMESPACE) -> Document:
        """Read the metadata of a document."""
        return await self._sluice.send(api.get(namespace, document_id))

    async def text(
        self,
        document_id: str,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        start: int = 0,
        end: int | None = None,
    ) -> str:
        """Read characters `start` to `end` of a document's text; at most a million at once."""
        return await self._sluice.send(api.text(namespace, document_id, start, end))

    async def search(
        self,
        q: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        top_k: int | None = None,
        mode: str | None = None,
        answer: bool = False,
        timeout_s: float | None = None,
    ) -> SearchResult:
        """Search for passages, best match first; with `answer` also generate an answer."""
        data = await self._sluice.send(api.search(namespace, q, top_k, mode, answer))
        if "hits" not in data:
            data = await self._sluice.job(str(data.get("job_id"))).result(timeout_s)
        return api.parse_search(data)

    async def delete(
        self,
        document_id: str,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Delete a document."""
        job_id = await self._sluice.send(api.delete(namespace, document_id))
        if job_id is not None:
            await self._sluice.job(job_id).result(timeout_s)
