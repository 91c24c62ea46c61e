"""Names of the document store: keys, fields, patterns of namespaces and document ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: The namespace of requests without one.
DEFAULT_NAMESPACE: Final = "default"
NAMESPACE_PATTERN: Final = re.compile(r"\A[a-z0-9][a-z0-9_-]{0,62}\Z")
DOCUMENT_ID_PATTERN: Final = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class RagOperation:
    """`op` in the payload of a `rag` job; the default is `query`."""

    QUERY: Final = "query"
    INGEST: Final = "ingest"
    DELETE: Final = "delete"


class DocumentField:
    """Members of a document record."""

    ID: Final = "id"
    TITLE: Final = "title"
    MEDIA_TYPE: Final = "media_type"
    CHARS: Final = "chars"
    CHUNKS: Final = "chunks"
    #: SHA-256 of the text.
    DIGEST: Final = "sha256"
    #: Changes with each ingest of the document.
    REVISION: Final = "revision"
    ADDED_TS: Final = "added_ts"
    #: Name of the embedding model; empty if the document has no vectors.
    EMBEDDER: Final = "embedder"


#: Maximum number of namespaces per tenant.
MOST_NAMESPACES: Final = 1000
#: Maximum number of terms per namespace, of aliases per term, and of characters of a name.
MOST_TERMS: Final = 5_000
MOST_ALIASES: Final = 50
NAME_CHARS: Final = 200


class TermField:
    """Members of an ontology term."""

    #: The preferred name.
    TERM: Final = "term"
    #: Other names of the same term.
    ALIASES: Final = "aliases"
    #: Kind of the proposal it comes from, and its workflow job and proposal id.
    KIND: Final = "kind"
    JOB: Final = "workflow_job_id"
    PROPOSAL: Final = "proposal_id"
    ADDED_MS: Final = "added_ms"


class SearchMode(str, Enum):
    """Search mode of a request, or the one that its result reports."""

    #: Both if there are vectors, else lexical. Only in requests.
    AUTO = "auto"
    LEXICAL = "lexical"
    VECTOR = "vector"
    #: Both, with fused ranks. Only in results.
    FUSED = "fused"


class RagKeySuffix(str, Enum):
    """Suffixes of the keys of a namespace; document keys continue with the document id."""

    DOCUMENTS = "documents"
    VERSION = "version"
    ORDER = "order"
    TEXT = "text"
    CHUNKS = "chunks"
    VECTORS = "vectors"
    VECTOR_SET = "vset"
    ONTOLOGY = "ontology"
    ONTOLOGY_VERSION = "ontology.version"
    CLAIMS = "claims"


class ClaimFieldPrefix(str, Enum):
    """Prefixes of claim fields; they continue with the document id or the term's field."""

    DOCUMENT = "d:"
    TERM = "t:"


@dataclass(frozen=True)
class RagKeys:
    """Every Redis key of a namespace. Each tenant has its own namespaces."""

    namespace: str
    tenant: str = ""
    #: The tag of partition 0 (`JobKeys.tag`).
    tag: str = ""

    @property
    def prefix(self) -> str:
        if self.tenant:
            return f"{self.tag}rag.of:{self.tenant}:{self.namespace}"
        return f"{self.tag}rag:{self.namespace}"

    def _key(self, part: RagKeySuffix, document_id: str = "") -> str:
        key = f"{self.prefix}:{part.value}"
        return f"{key}:{document_id}" if document_id else key

    @property
    def documents(self) -> str:
        """HASH, document id to its record (JSON)."""
        return self._key(RagKeySuffix.DOCUMENTS)

    @property
    def version(self) -> str:
        """STRING, incremented with each change of the namespace; starts at its creation time in
        microseconds."""
        return self._key(RagKeySuffix.VERSION)

    @property
    def order(self) -> str:
        """ZSET, document ids by the version of their last change."""
        return self._key(RagKeySuffix.ORDER)

    def text(self, document_id: str) -> str:
        """STRING, the document's text; spans are character offsets in it."""
        return self._key(RagKeySuffix.TEXT, document_id)

    def chunks(self, document_id: str) -> str:
        """STRING, JSON list of `[start, end]`."""
        return self._key(RagKeySuffix.CHUNKS, document_id)

    def vectors(self, document_id: str) -> str:
        """STRING, one row of little-endian float32 values per chunk."""
        return self._key(RagKeySuffix.VECTORS, document_id)

    @property
    def vector_set(self) -> str:
        """VECTOR SET of all chunks, if Redis supports it (8.0)."""
        return self._key(RagKeySuffix.VECTOR_SET)

    @property
    def ontology(self) -> str:
        """HASH, normalised term to its entry (JSON); used to expand queries."""
        return self._key(RagKeySuffix.ONTOLOGY)

    @property
    def ontology_version(self) -> str:
        """STRING, the namespace version of the ontology's last change."""
        return self._key(RagKeySuffix.ONTOLOGY_VERSION)

    @property
    def claims(self) -> str:
        """HASH, document or term to the workflow jobs that rely on it: they found it present when
        they applied their changes."""
        return self._key(RagKeySuffix.CLAIMS)

    @property
    def namespaces(self) -> str:
        """The key with the names of all namespaces of the tenant."""
        return namespaces_key(self.tenant, self.tag)

    def upload(self, job_id: str) -> str:
        """The key with the body of a document for its ingest job."""
        return upload_key(job_id, self.tag)


def namespaces_key(tenant: str = "", tag: str = "") -> str:
    """SET, names of the namespaces with documents or terms."""
    return f"{tag}rag.namespaces.of:{tenant}" if tenant else f"{tag}rag.namespaces"


def document_key_patterns(tag: str = "") -> tuple[str, ...]:
    """Patterns of all keys of all namespaces and tenants, without uploads."""
    names = (namespaces_key(tag=tag), namespaces_key("*", tag))
    return (f"{tag}rag:*", f"{tag}rag.of:*", *names)


#: Member of an ingest payload: the SHA-256 of a body stored under `upload_key`, or true.
UPLOAD_FIELD: Final = "upload"


def upload_key(job_id: str, tag: str = "") -> str:
    """STRING, the body of a document that its ingest job has not read yet."""
    return f"{tag}rag.upload:{job_id}"
