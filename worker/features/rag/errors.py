"""Errors of documents and namespaces."""

from __future__ import annotations

from sluice.worker.errors import JobError


class UnreadableDocument(JobError):
    """No text can be extracted from the document."""

    kind = "unreadable_document"


class UnsupportedMedia(JobError):
    """The media type is not supported."""

    kind = "unsupported_media_type"


class DocumentTooLong(JobError):
    """The text exceeds the limit of a document."""

    kind = "document_too_long"


class UploadGone(JobError):
    """The uploaded body is no longer available."""

    kind = "upload_gone"


class NamespaceFull(JobError):
    """The namespace has reached its limit of documents."""

    kind = "namespace_full"


class TooManyNamespaces(JobError):
    """The limit of namespaces is reached."""

    kind = "too_many_namespaces"


class CorruptNamespace(JobError):
    """A key of the namespace was overwritten by something else."""

    kind = "store_corrupt"
