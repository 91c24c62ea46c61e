"""What `/v1/queues` takes and answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from common.contracts.jobs import QUEUE_STREAM
from common.jobs.pause import MAX_TEXT_CHARS, Pause


class PauseRequest(BaseModel):
    """Why a queue is paused, for whoever wonders."""

    model_config = ConfigDict(extra="forbid")

    why: str | None = Field(
        None, max_length=MAX_TEXT_CHARS, examples=["the model server is replaced"]
    )


class PauseView(BaseModel):
    """A pause."""

    since_ms: int = Field(description="Since when, Unix milliseconds.", examples=[1760000000000])
    by: str = Field(description="Who has paused it: an API key's id, or `local`.")
    why: str = Field(description="Why, if they have said so.")

    @classmethod
    def of(cls, pause: Pause) -> PauseView:
        return cls(since_ms=pause.since_ms, by=pause.by, why=pause.why)


class QueuePauseView(BaseModel):
    """A queue that was paused, or goes on."""

    name: str = Field(examples=[QUEUE_STREAM])
    paused: PauseView | None


class WaitingView(BaseModel):
    """Messages of a task that were read and wait for a place."""

    number: int
    oldest_age_ms: int | None = Field(description="How long the oldest has waited.")


class PartitionView(BaseModel):
    """A partition of the job queue; null is what its server did not tell."""

    partition: int = Field(examples=[3])
    depth: int | None = Field(description="Messages that no worker was given yet.")
    pending: int | None = Field(description="Messages that workers have.")
    scheduled: int | None = Field(description="Jobs that wait for their time.")
    dead_letters: int | None
    backlog_limit: int = Field(description="Depth plus pending from which on it has no room.")
    trouble: str | None = Field(description="Why it does not answer; null where it does.")


class LaneView(BaseModel):
    """A lane of the job queue; null is what Redis did not tell."""

    lane: str = Field(description="Or `tenants.0` and so on (TENANT_LANES).", examples=["high"])
    depth: int | None = Field(description="Messages that no worker was given yet.")
    pending: int | None = Field(description="Messages that workers have.")


class QueueView(BaseModel):
    """The job queue; null is what Redis did not tell."""

    name: str = Field(examples=[QUEUE_STREAM])
    depth: int | None = Field(description="Messages that no worker was given yet.")
    pending: int | None = Field(description="Messages that workers have.")
    oldest_age_ms: int | None = Field(description="How long the oldest message has waited.")
    scheduled: int | None = Field(description="Jobs that wait for their time.")
    dead_letters: int | None
    drain_rate_per_s: float = Field(description="Jobs that end per second, smoothed.")
    backlog_limit: int = Field(description="Depth plus pending from which on a POST gets 429.")
    paused: PauseView | None = Field(description="Null while it is not.")
    waiting: dict[str, WaitingView] = Field(
        description="By task, what waits for a place of that task."
    )
    lanes: list[LaneView] | None = Field(
        None, description="Each of them, the urgent one first; only where there are any (LANES)."
    )
    partitions: list[PartitionView] | None = Field(
        None, description="Each of them; only where there are several (QUEUE_PARTITIONS)."
    )


class BullQueueView(BaseModel):
    """One of BullMQ's queues."""

    name: str
    counts: dict[str, int] = Field(
        description="Jobs by where they are; empty where Redis did not tell."
    )


class QueueList(BaseModel):
    """Every queue that this gateway puts jobs on."""

    queues: list[QueueView] = Field(description="Sluice's own.")
    bullmq: list[BullQueueView] = Field(description="See BULLMQ_ADD_QUEUES.")
