"""Names of the document store: keys, fields, what a namespace and a document may be called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: The namespace of requests that name none.
DEFAULT_NAMESPACE: Final = "default"
NAMESPACE_PATTERN: Final = re.compile(r"\A[a-z0-9][a-z0-9_-]{0,62}\Z")
DOCUMENT_ID_PATTERN: Final = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class RagOperation:
    """What a `rag` job may ask for, in its payload's `op`; `query` where it names none."""

    QUERY: Final = "query"
    INGEST: Final = "ingest"
    DELETE: Final = "delete"


class DocumentField:
    """Members of a document's record."""

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
    #: Name of the model behind its vectors; empty where it has none.
    EMBEDDER: Final = "embedder"


#: Namespaces of a tenant.
MOST_NAMESPACES: Final = 1000
#: Terms that a namespace knows, other names that one may have, and characters of a name.
MOST_TERMS: Final = 5_000
MOST_ALIASES: Final = 50
NAME_CHARS: Final = 200


class TermField:
    """Members of a term's entry in the ontology."""

    #: The name that counts, as it is written.
    TERM: Final = "term"
    #: Other names of the same.
    ALIASES: Final = "aliases"
    #: What kind of proposal it comes from, and which: workflow job and proposal id.
    KIND: Final = "kind"
    JOB: Final = "workflow_job_id"
    PROPOSAL: Final = "proposal_id"
    ADDED_MS: Final = "added_ms"


class SearchMode(str, Enum):
    """How documents are found: what a request may ask for, and what its result says was done."""

    #: Both where there are vectors, else by words; a request's, never a result's.
    AUTO = "auto"
    LEXICAL = "lexical"
    VECTOR = "vector"
    #: Both, their ranks put together; a result's, never a request's.
    FUSED = "fused"


class RagKeySuffix(str, Enum):
    """How the keys of a namespace end; those of single documents go on with the id."""

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
    """How a field of the claims begins; it goes on with the document's id, or the term's field."""

    DOCUMENT = "d:"
    TERM = "t:"


@dataclass(frozen=True)
class RagKeys:
    """Every key of a namespace. Tenants have their own namespaces of the same names."""

    namespace: str
    tenant: str = ""
    #: The home partition's (`JobKeys.tag`).
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
        """HASH, document id to its record, JSON."""
        return self._key(RagKeySuffix.DOCUMENTS)

    @property
    def version(self) -> str:
        """STRING, grows with each change of the namespace; begins at its birth, in microseconds."""
        return self._key(RagKeySuffix.VERSION)

    @property
    def order(self) -> str:
        """ZSET, document ids by the version at which each changed last."""
        return self._key(RagKeySuffix.ORDER)

    def text(self, document_id: str) -> str:
        """STRING, the document's text; spans are offsets in it, in characters."""
        return self._key(RagKeySuffix.TEXT, document_id)

    def chunks(self, document_id: str) -> str:
        """STRING, JSON list of `[start, end]`."""
        return self._key(RagKeySuffix.CHUNKS, document_id)

    def vectors(self, document_id: str) -> str:
        """STRING, one little-endian float32 row a chunk."""
        return self._key(RagKeySuffix.VECTORS, document_id)

    @property
    def vector_set(self) -> str:
        """VECTOR SET of all chunks, where Redis has such a thing (8.0)."""
        return self._key(RagKeySuffix.VECTOR_SET)

    @property
    def ontology(self) -> str:
        """HASH, normalised term to its entry, JSON; queries are expanded by it."""
        return self._key(RagKeySuffix.ONTOLOGY)

    @property
    def ontology_version(self) -> str:
        """STRING, the namespace's version at which the ontology changed last."""
        return self._key(RagKeySuffix.ONTOLOGY_VERSION)

    @property
    def claims(self) -> str:
        """HASH, document or term to the workflow jobs that found it there when they applied."""
        return self._key(RagKeySuffix.CLAIMS)

    @property
    def namespaces(self) -> str:
        """Where the names of all namespaces of the tenant are."""
        return namespaces_key(self.tenant, self.tag)

    def upload(self, job_id: str) -> str:
        """Where the body of a document waits for its ingest job."""
        return upload_key(job_id, self.tag)


def namespaces_key(tenant: str = "", tag: str = "") -> str:
    """SET, names of the namespaces that hold documents or terms."""
    return f"{tag}rag.namespaces.of:{tenant}" if tenant else f"{tag}rag.namespaces"


def document_key_patterns(tag: str = "") -> tuple[str, ...]:
    """Patterns of all keys of all namespaces and tenants; uploads are none of them."""
    names = (namespaces_key(tag=tag), namespaces_key("*", tag))
    return (f"{tag}rag:*", f"{tag}rag.of:*", *names)


#: Member of an ingest's payload: the SHA-256 of a body that waits under `upload_key`, or true.
UPLOAD_FIELD: Final = "upload"


def upload_key(job_id: str, tag: str = "") -> str:
    """STRING, the body of a document that its ingest job has not read yet."""
    return f"{tag}rag.upload:{job_id}"
