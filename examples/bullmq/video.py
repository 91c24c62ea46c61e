"""A handler for jobs submitted by Node; see the README in this directory.

It does not depend on BullMQ: the same function could run a job submitted over HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, Field

from sluice.worker import JobContext, Registry, TransientError

#: Simulated work between two progress reports, in seconds.
SCENE_S = 0.1


class Script(BaseModel):
    """The contents of the video."""

    title: str
    scenes: list[dict[str, Any]] = Field(min_length=1)


class Video(BaseModel):
    """The job's data. A job with invalid data fails at once, without retries."""

    videoId: str  # noqa: N815
    userId: str  # noqa: N815
    script: Script
    userImageUrls: list[str] = []  # noqa: N815
    #: For experiments: number of attempts that fail as if a service were down.
    failures: int = 0


async def generate(context: JobContext, video: Video) -> dict[str, Any]:
    """Reports 25, 50, 75 and 100 percent, and returns the URL of the video."""
    if context.attempt <= video.failures:
        raise TransientError("the renderer does not respond")  # retried with the job's backoff
    for percent, message in (
        (25, "Generating scene 1"),
        (50, "Generating scene 2"),
        (75, "Uploading video"),
        (100, "Complete"),
    ):
        await asyncio.sleep(SCENE_S)
        await context.progress(percent, message)
    return {"videoUrl": f"https://example.com/videos/{video.videoId}.mp4", "duration": 15}


def register(registry: Registry) -> None:
    """Called at start for each module in WORKER_HANDLERS."""
    registry.add_named("video-generation", generate)
