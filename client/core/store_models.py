"""What the gateway says of images and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.core.raw import everything


@dataclass(frozen=True)
class Image:
    """An image as it stands; what is not known yet is None. `raw` has the rest."""

    image_id: str
    status: str
    stage: str = ""
    progress: int = 0
    created_at: str = ""
    updated_at: str = ""
    filename: str | None = None
    job_id: str | None = None
    content_type: str | None = None
    file_size: int | None = None
    processed_width: int | None = None
    processed_height: int | None = None
    error: str | None = None
    error_code: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = everything()

    @property
    def ended(self) -> bool:
        """Whether it was processed, or has failed."""
        return self.status in ("processed", "failed")


@dataclass(frozen=True)
class ImagePlace:
    """Where the bytes of an image are to be sent."""

    image_id: str
    status: str
    upload_url: str
    upload_token: str | None = None
    expires_at: str = ""
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Document:
    """A document that can be found."""

    id: str
    title: str
    media_type: str
    chars: int
    chunks: int
    added_ts: int
    embedder: str = ""
    sha256: str = ""
    revision: str = ""
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Ingested:
    """A document that was taken in."""

    document_id: str
    chunks: int
    chars: int
    embedder: str = ""
    replaced: bool = False
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Hit:
    """A passage, best first."""

    document_id: str
    title: str
    score: float
    start: int
    end: int
    quote: str
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Found:
    """What a search found; `text` is the answer where one was asked for."""

    hits: Sequence[Hit]
    text: str | None = None
    mode: str = ""
    raw: Mapping[str, Any] = everything()
