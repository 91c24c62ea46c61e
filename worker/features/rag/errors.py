"""What may be wrong with a document or a namespace; each says what to do about it."""

from __future__ import annotations

from worker.errors import JobError


class UnreadableDocument(JobError):
    """No text can be got out of it."""

    kind = "unreadable_document"


class UnsupportedMedia(JobError):
    """Documents of this type are not read here."""

    kind = "unsupported_media_type"


class DocumentTooLong(JobError):
    """Its text is longer than a document's may be."""

    kind = "document_too_long"


class UploadGone(JobError):
    """The body that was to be read is not there any more."""

    kind = "upload_gone"


class NamespaceFull(JobError):
    """It holds as many documents as it may."""

    kind = "namespace_full"


class TooManyNamespaces(JobError):
    """There are as many namespaces as there may be."""

    kind = "too_many_namespaces"


class CorruptNamespace(JobError):
    """A foreign hand has put something else where documents are kept."""

    kind = "store_corrupt"
