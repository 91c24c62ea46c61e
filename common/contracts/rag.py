"""Names of the document store: keys, fields, what a namespace and a document may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: The namespace of requests that name none.
DEFAULT_NAMESPACE: Final = "default"
NAMESPACE: Final = re.compile(r"\A[a-z0-9][a-z0-9_-]{0,62}\Z")
DOCUMENT_ID: Final = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class RagOperation(str, Enum):
    """What a `rag` job may ask for, in its payload's `op`; `query` where it names none."""

    QUERY = "query"
    INGEST = "ingest"
    DELETE = "delete"


class DocumentField(str, Enum):
    """Members of a document's record."""

    ID = "id"
    TITLE = "title"
    MEDIA_TYPE = "media_type"
    CHARS = "chars"
    CHUNKS = "chunks"
    #: SHA-256 of the text.
    DIGEST = "sha256"
    #: Changes with each ingest of the document.
    REVISION = "revision"
    ADDED_TS = "added_ts"
    #: Name of the model behind its vectors; empty where it has none.
    EMBEDDER = "embedder"


class SearchMode(str, Enum):
    """How documents are found: what a request may ask for, and what its result says was done."""

    #: Both where there are vectors, else by words; a request's, never a result's.
    AUTO = "auto"
    LEXICAL = "lexical"
    VECTOR = "vector"
    #: Both, their ranks put together; a result's, never a request's.
    FUSED = "fused"


@dataclass(frozen=True)
class RagKeys:
    """Every key of a namespace. Tenants have their own namespaces of the same names."""

    namespace: str
    tenant: str = ""

    @property
    def _prefix(self) -> str:
        if self.tenant:
            return f"rag.of:{self.tenant}:{self.namespace}"
        return f"rag:{self.namespace}"

    @property
    def documents(self) -> str:
        """HASH, document id to its record, JSON."""
        return f"{self._prefix}:documents"

    @property
    def version(self) -> str:
        """STRING, grows with each change of the namespace; begins at its birth, in microseconds."""
        return f"{self._prefix}:version"

    @property
    def order(self) -> str:
        """ZSET, document ids by the version at which each changed last."""
        return f"{self._prefix}:order"

    def text(self, document_id: str) -> str:
        """STRING, the document's text; spans are offsets in it, in characters."""
        return f"{self._prefix}:text:{document_id}"

    def chunks(self, document_id: str) -> str:
        """STRING, JSON list of `[start, end]`."""
        return f"{self._prefix}:chunks:{document_id}"

    def vectors(self, document_id: str) -> str:
        """STRING, one little-endian float32 row a chunk."""
        return f"{self._prefix}:vectors:{document_id}"

    @property
    def vector_set(self) -> str:
        """VECTOR SET of all chunks, where Redis has such a thing (8.0)."""
        return f"{self._prefix}:vset"


def namespaces_key(tenant: str = "") -> str:
    """SET, names of the namespaces that hold documents."""
    return f"rag.namespaces.of:{tenant}" if tenant else "rag.namespaces"


def document_patterns() -> tuple[str, ...]:
    """Patterns of all keys of all namespaces and tenants; uploads are none of them."""
    return ("rag:*", "rag.of:*", namespaces_key(), namespaces_key("*"))


#: Member of an ingest's payload: the SHA-256 of a body that waits under `upload_key`, or true.
UPLOAD: Final = "upload"


def upload_key(job_id: str) -> str:
    """STRING, the body of a document that its ingest job has not read yet."""
    return f"rag.upload:{job_id}"
