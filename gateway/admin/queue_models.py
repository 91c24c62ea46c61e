"""Request and response models of `/v1/queues`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from sluice.common.contracts.jobs import QUEUE_STREAM
from sluice.common.jobs.pause import MAX_TEXT_CHARS, Pause


class PauseRequest(BaseModel):
    """Why a queue is paused."""

    model_config = ConfigDict(extra="forbid")

    why: str | None = Field(
        None, max_length=MAX_TEXT_CHARS, examples=["the model server is replaced"]
    )


class PauseView(BaseModel):
    """A pause of the queue."""

    since_ms: int = Field(
        description="Start of the pause, Unix milliseconds.", examples=[1760000000000]
    )
    by: str = Field(description="Id of the API key that paused the queue, or `local`.")
    why: str = Field(description="The reason, if one was given.")

    @classmethod
    def of(cls, pause: Pause) -> PauseView:
        return cls(since_ms=pause.since_ms, by=pause.by, why=pause.why)


class QueuePauseView(BaseModel):
    """A queue that was paused or resumed."""

    name: str = Field(examples=[QUEUE_STREAM])
    paused: PauseView | None


class WaitingView(BaseModel):
    """Messages of a task that were read and wait for a slot."""

    number: int
    oldest_age_ms: int | None = Field(description="How long the oldest one has waited.")


class PartitionView(BaseModel):
    """A partition of the job queue; null for values that its Redis did not return."""

    partition: int = Field(examples=[3])
    depth: int | None = Field(description="Messages that no worker has read yet.")
    pending: int | None = Field(description="Messages that workers have read and not acknowledged.")
    scheduled: int | None = Field(description="Scheduled jobs that are not due yet.")
    dead_letters: int | None
    backlog_limit: int = Field(description="Depth plus pending from which new jobs are refused.")
    trouble: str | None = Field(description="Why its Redis does not answer; null if it does.")


class LaneView(BaseModel):
    """A lane of the job queue; null for values that Redis did not return."""

    lane: str = Field(description="Or `tenants.0` and so on (TENANT_LANES).", examples=["high"])
    depth: int | None = Field(description="Messages that no worker has read yet.")
    pending: int | None = Field(description="Messages that workers have read and not acknowledged.")


class QueueView(BaseModel):
    """The job queue; null for values that Redis did not return."""

    name: str = Field(examples=[QUEUE_STREAM])
    depth: int | None = Field(description="Messages that no worker has read yet.")
    pending: int | None = Field(description="Messages that workers have read and not acknowledged.")
    oldest_age_ms: int | None = Field(description="How long the oldest message has waited.")
    scheduled: int | None = Field(description="Scheduled jobs that are not due yet.")
    dead_letters: int | None
    drain_rate_per_s: float = Field(description="Jobs ended per second, smoothed.")
    backlog_limit: int = Field(description="Depth plus pending from which new jobs get 429.")
    paused: PauseView | None = Field(description="Null while the queue is not paused.")
    waiting: dict[str, WaitingView] = Field(
        description="Messages that wait for a slot of their task, by task."
    )
    lanes: list[LaneView] | None = Field(
        None, description="Lanes, the most urgent one first; only if there are any (LANES)."
    )
    partitions: list[PartitionView] | None = Field(
        None, description="Partitions; only if there are several (QUEUE_PARTITIONS)."
    )


class BullQueueView(BaseModel):
    """A BullMQ queue."""

    name: str
    counts: dict[str, int] = Field(
        description="Number of jobs by state; empty if Redis did not answer."
    )


class QueueList(BaseModel):
    """All queues that this gateway adds jobs to."""

    queues: list[QueueView] = Field(description="The job queue.")
    bullmq: list[BullQueueView] = Field(description="The queues in BULLMQ_ADD_QUEUES.")
