"""What the data of an image's events has."""

from __future__ import annotations

from pydantic import BaseModel, Field

from common.contracts.images import CONTENT_TYPE, Stage
from gateway.images.models import EXAMPLE_ID


class ImageEventData(BaseModel):
    """Of every event."""

    image_id: str = Field(examples=[EXAMPLE_ID])
    stage: Stage
    progress: int = Field(description="Percent; -1 where it has failed.", ge=-1, le=100)
    updated_at: str


class ReadyData(ImageEventData):
    """Of `ready`: what was stored, and where to fetch it."""

    original_width: int | None = None
    original_height: int | None = None
    processed_width: int | None = None
    processed_height: int | None = None
    file_size: int | None = None
    content_type: str | None = Field(None, examples=[CONTENT_TYPE])
    sha256: str | None = None
    etag: str | None = None
    content_url: str


class FailedData(ImageEventData):
    """Of `failed`: why."""

    error: str
    error_code: str
