"""RagReader: reads documents; only workers write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.contracts.rag import DocumentField, RagKeys, namespaces_key
from sluice.common.jobs.store import read_reply

#: Default number of documents per page.
DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200


@dataclass(frozen=True)
class DocumentRecord:
    """Metadata of a document."""

    id: str
    title: str
    media_type: str
    chars: int
    chunks: int
    sha256: str
    revision: str
    added_ts: int = 0
    #: Name of the embedding model; empty if the document has no vectors.
    embedder: str = ""

    @classmethod
    def from_json(cls, raw: bytes) -> DocumentRecord | None:
        """Parse a stored record; None if it is invalid."""
        try:
            stored = codec.loads(raw)
            return cls(
                id=str(stored[DocumentField.ID]),
                title=str(stored[DocumentField.TITLE]),
                media_type=str(stored[DocumentField.MEDIA_TYPE]),
                chars=int(stored[DocumentField.CHARS]),
                chunks=int(stored[DocumentField.CHUNKS]),
                sha256=str(stored[DocumentField.DIGEST]),
                revision=str(stored[DocumentField.REVISION]),
                added_ts=int(stored.get(DocumentField.ADDED_TS, 0)),
                embedder=str(stored.get(DocumentField.EMBEDDER, "")),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def with_embedder(self, embedder: str) -> DocumentRecord:
        return replace(self, embedder=embedder)

    def to_json(self) -> bytes:
        return codec.dumps(self.view())

    def view(self) -> dict[str, Any]:
        """As in responses and in Redis."""
        return {
            DocumentField.ID: self.id,
            DocumentField.TITLE: self.title,
            DocumentField.MEDIA_TYPE: self.media_type,
            DocumentField.CHARS: self.chars,
            DocumentField.CHUNKS: self.chunks,
            DocumentField.DIGEST: self.sha256,
            DocumentField.REVISION: self.revision,
            DocumentField.ADDED_TS: self.added_ts,
            DocumentField.EMBEDDER: self.embedder,
        }


class DocumentPage(NamedTuple):
    """A page of documents, last changed first; `next` is the cursor of the next page, if any."""

    records: Sequence[DocumentRecord]
    total: int
    next: str | None


class RagReader:
    """Reads documents of all tenants; raises StoreUnavailable."""

    def __init__(self, client: Redis, tag: str = "") -> None:
        self._client = client
        self._tag = tag

    def keys(self, ns: str, tenant: str) -> RagKeys:
        return RagKeys(ns, tenant, self._tag)

    async def namespaces(self, tenant: str = "") -> list[str]:
        """The names of namespaces with documents or terms, sorted."""
        command: Any = self._client.smembers(namespaces_key(tenant, self._tag))
        return sorted(codec.decode_text(name) for name in await read_reply(command) or ())

    async def list(
        self, keys: RagKeys, cursor: str = "", limit: int = DEFAULT_PAGE_SIZE
    ) -> DocumentPage:
        """A page of a namespace's documents, last changed first.

        A document that changes meanwhile moves to the front and does not appear again. An invalid
        cursor starts at the beginning.
        """
        after = codec.parse_int(cursor.encode("ascii", "replace"))
        newest = f"({after}" if after > 0 else "+inf"
        command: Any = self._client.zrange(
            keys.order, newest, "-inf", desc=True, withscores=True, byscore=True,
            offset=0, num=limit + 1,
        )  # fmt: skip
        found = await read_reply(command) or []
        page = found[:limit]
        records = await self._records(keys, [codec.decode_text(name) for name, _ in page])
        counting: Any = self._client.hlen(keys.documents)
        after_page = str(int(page[-1][1])) if len(found) > limit else None
        return DocumentPage(records, await read_reply(counting) or 0, after_page)

    async def get(self, keys: RagKeys, document_id: str) -> DocumentRecord | None:
        return next(iter(await self._records(keys, [document_id])), None)

    async def text(
        self, keys: RagKeys, document_id: str, start: int = 0, end: int | None = None
    ) -> str | None:
        """`text[start:end]` of a document, in characters; None if it does not exist."""
        command: Any = self._client.get(keys.text(document_id))
        raw = await read_reply(command)
        return None if raw is None else codec.decode_text(raw)[start:end]

    async def _records(
        self, keys: RagKeys, document_ids: Sequence[str]
    ) -> Sequence[DocumentRecord]:
        if not document_ids:
            return []
        command: Any = self._client.hmget(keys.documents, [*document_ids])
        stored = await read_reply(command) or ()
        records = (DocumentRecord.from_json(raw) for raw in stored if raw is not None)
        return [record for record in records if record is not None]
