"""Where the BullMQ door is."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

QUEUE: Final = "queue"
JOB: Final = "id"
QUEUE_EVENTS: Final = "/v1/bullmq/{queue}/events"
JOBS: Final = "/v1/bullmq/{queue}/jobs"
ONE: Final = "/v1/bullmq/{queue}/jobs/{id}"
EVENTS: Final = "/v1/bullmq/{queue}/jobs/{id}/events"


def place_of(queue: str, job_id: str) -> str:
    """A job's URL."""
    return f"/v1/bullmq/{quote(queue, safe='')}/jobs/{quote(job_id, safe='')}"
