"""A handler for jobs that Node submits; see the README beside it.

Nothing in it knows BullMQ: the same function could do a job that came over HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel, Field

from sluice.worker import JobContext, Registry, TransientError

#: Pretended work between two reports, in seconds.
SCENE_S = 0.1


class Script(BaseModel):
    """What the video shows."""

    title: str
    scenes: list[dict[str, Any]] = Field(min_length=1)


class Video(BaseModel):
    """The job's data. What does not fit fails at once: trying again would not help."""

    videoId: str  # noqa: N815
    userId: str  # noqa: N815
    script: Script
    userImageUrls: list[str] = []  # noqa: N815
    #: For trying it out: attempts that fail as if a service were away.
    failures: int = 0


async def generate(context: JobContext, video: Video) -> dict[str, Any]:
    """Report 25, 50, 75 and 100 percent, and say where the video is."""
    if context.attempt <= video.failures:
        raise TransientError("the renderer does not answer")  # tried again by the job's own backoff
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
    """Called by WORKER_HANDLERS."""
    registry.add_named("video-generation", generate)
