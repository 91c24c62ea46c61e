"""Documents: added, found, removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from client.core import store_api as api
from client.core.store_models import Document, Found, Ingested

if TYPE_CHECKING:
    from client.aio.client import AsyncSluice

DEFAULT = "default"


class Documents:
    """Those of one gateway; `AsyncSluice.rag`."""

    def __init__(self, sluice: AsyncSluice) -> None:
        self._sluice = sluice

    async def namespaces(self) -> list[str]:
        """Those that hold anything."""
        return await self._sluice.run(api.namespaces())

    async def add(
        self,
        content: str | bytes,
        *,
        namespace: str = DEFAULT,
        document_id: str | None = None,
        title: str | None = None,
        media_type: str | None = None,
        timeout_s: float | None = None,
    ) -> Ingested:
        """Take in a text, or a file's bytes under its media type; waits until it can be found.

        The same id again replaces the document. Raises JobFailed where it cannot be read.
        """
        told = await self._sluice.run(
            api.add_document(
                namespace, content, document_id=document_id, title=title, media_type=media_type
            )
        )
        if "document_id" not in told:  # it takes longer than a request may
            told = await self._sluice.job(str(told.get("job_id"))).result(timeout_s)
        return api.ingested(told)

    def list(self, namespace: str = DEFAULT) -> AsyncIterator[Document]:
        """All of a namespace, the last changed first."""
        return self._sluice.pages(lambda before: api.list_documents(namespace, None, before))

    async def get(self, document_id: str, namespace: str = DEFAULT) -> Document:
        """What is known of one."""
        return await self._sluice.run(api.get_document(namespace, document_id))

    async def text(
        self, document_id: str, namespace: str = DEFAULT, *, start: int = 0, end: int | None = None
    ) -> str:
        """What it says, in characters from `start` to `end`; a million at most."""
        return await self._sluice.run(api.document_text(namespace, document_id, start, end))

    async def search(
        self,
        q: str,
        *,
        namespace: str = DEFAULT,
        top_k: int | None = None,
        mode: str | None = None,
        answer: bool = False,
        timeout_s: float | None = None,
    ) -> Found:
        """Passages that fit, best first; with `answer` also an answer in words."""
        told = await self._sluice.run(api.search(namespace, q, top_k, mode, answer))
        if "hits" not in told:
            told = await self._sluice.job(str(told.get("job_id"))).result(timeout_s)
        return api.found(told)

    async def delete(
        self, document_id: str, namespace: str = DEFAULT, *, timeout_s: float | None = None
    ) -> None:
        """It is gone."""
        job_id = await self._sluice.run(api.delete_document(namespace, document_id))
        if job_id is not None:
            await self._sluice.job(job_id).result(timeout_s)
