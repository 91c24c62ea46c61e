"""What workers say of themselves, as a gateway reads it; `worker.signs` is how it is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.tools import McpState
from common.contracts.workers import (
    BOUNDS,
    FIRST_TOKEN_BOUNDS,
    MOST_NAMED,
    MOST_WORKERS,
    TASK_LABELS,
    Count,
    ModelState,
    Spread,
)
from common.host import Readings
from common.pipelines import replies_of
from common.queue_reading import QueueReading

#: A longer text is none of ours.
MOST_BYTES = 256 * 1024

Name = Annotated[str, Field(max_length=256)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    """Foreign members are ignored: another version may know more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunningJob(_Part):
    """A job that a worker runs now."""

    job_id: Name
    task: Name
    attempt: Natural
    since_ms: Natural = Field(description="When the attempt began, Unix milliseconds.")


class Box(_Part):
    """The machine a worker runs on; what it has no sensor for is left out."""

    memory_pressure: float | None = Field(
        None, description="Percent of time in which every task stood still for want of memory."
    )
    available_bytes: Natural | None = Field(None, description="Memory that is still to be had.")
    temperature_c: float | None = Field(None, description="The hottest sensor, degrees Celsius.")
    hottest: Name | None = Field(None, description="That sensor's name.")
    gpu_load: float | None = Field(None, description="How busy the GPU is, from 0 to 1.")
    power_mode: Name | None = Field(None, description="The Jetson's power mode.")

    @classmethod
    def of(cls, readings: Readings) -> Box:
        """What was read of a machine."""
        return cls(**asdict(readings))


class Histogram(_Part):
    """How many values fell between which bounds of the contract."""

    counts: list[Natural] = Field(max_length=64)
    sum: float = Field(allow_inf_nan=False)


class TaskNumbers(_Part):
    """What a worker has done of a task since it began."""

    started: Natural = 0
    succeeded: Natural = 0
    failed: Natural = 0
    canceled: Natural = 0
    expired: Natural = 0
    retried: Natural = 0
    postponed: Natural = 0
    deadlettered: Natural = 0
    released: Natural = 0
    reclaimed: Natural = 0
    queue_wait: Histogram | None = None
    run: Histogram | None = None
    end_to_end: Histogram | None = None
    attempts: Histogram | None = None

    def count(self, count: Count) -> int:
        """One of its counters."""
        number: int = getattr(self, count.value)
        return number

    def spread(self, spread: Spread) -> Histogram | None:
        """One of its histograms; None where it is empty, or has other buckets than ours."""
        histogram: Histogram | None = getattr(self, spread.value)
        if histogram is None or len(histogram.counts) != len(BOUNDS[spread]) + 1:
            return None
        return histogram


class ModelReading(_Part):
    """A worker's model server, and what it has done for the worker since that began."""

    state: ModelState
    reason: Annotated[str, Field(max_length=1000)] = Field("", description="What is wrong.")
    url: Name = Field("", description="Where it is; credentials are left out.")
    name: Name = Field("", description="The model that it is asked for.")
    slots: Natural = Field(0, description="Answers that it makes at once.")
    busy: Natural = Field(0, description="Answers that it makes now, for this worker.")
    waiting: Natural = Field(0, description="Requests of running jobs that wait for a slot.")
    answers: Natural = 0
    failures: Natural = 0
    prompt_tokens: Natural = 0
    completion_tokens: Natural = 0
    cached_tokens: Natural = Field(0, description="Of the prompt's, those it remembered.")
    first_token: Histogram | None = Field(None, description="Seconds until answers began.")

    @property
    def first_token_spread(self) -> Histogram | None:
        """That histogram; None where it has other buckets than ours."""
        found = self.first_token
        fits = found is not None and len(found.counts) == len(FIRST_TOKEN_BOUNDS) + 1
        return found if fits else None


class McpReading(_Part):
    """An MCP server that a worker was given."""

    name: Name
    state: McpState
    reason: Annotated[str, Field(max_length=1000)] = Field("", description="What is wrong.")
    tools: Natural = Field(0, description="Tools that it has.")
    restarts: Natural = Field(0, description="How often it was begun again.")


#: Counters of the following.
WEBHOOK_OUTCOMES = ("delivered", "retried", "failed")


class WebhooksReading(_Part):
    """Deliveries to webhooks that a worker has tried since it began."""

    delivered: Natural = 0
    retried: Natural = Field(0, description="Failed, and tried again later.")
    failed: Natural = Field(0, description="Given up.")
    under_way: Natural = 0


class ImagesReading(_Part):
    """Images that a worker has processed since it began, and who looks at them."""

    detector: Name = Field("", description="Who looks for faces and plates; `none` for nobody.")
    detector_why: Annotated[str, Field(max_length=1000)] = Field(
        "", description="Why nobody does, and what would change that."
    )
    blur: Name = Field("", description="How what is found is made unrecognisable.")
    places: Natural = Field(0, description="Images that it processes at once.")
    busy: Natural = Field(0, description="Images that it processes now.")
    waiting: Natural = Field(0, description="Running jobs that wait for a place.")
    processed: Natural = 0
    failed: Natural = 0


class BullmqReading(_Part):
    """A queue of BullMQ that a worker takes jobs from, and what it has done of it."""

    queue: Name
    places: Natural = Field(0, description="Jobs of it that run at once at most.")
    running: Natural = 0
    started: Natural = 0
    succeeded: Natural = 0
    failed: Natural = 0
    canceled: Natural = 0
    retried: Natural = 0
    postponed: Natural = 0
    released: Natural = Field(0, description="Handed back by a worker that stopped.")
    stalled: Natural = Field(0, description="Put back because their worker had died.")
    locks_lost: Natural = Field(0, description="Stopped here because another worker has them.")
    errors: Natural = Field(0, description="Looks for jobs that Redis had no answer to.")


class LimitReading(_Part):
    """Places that some tasks share, such as `chat+plan+code`."""

    name: Name
    places: Natural
    running: Natural = Field(0, description="Jobs of this worker that have one.")


class WaitingReading(_Part):
    """Messages of a task that wait for a place, wherever there will be one."""

    number: Natural
    oldest_ms: Natural = Field(0, description="When the oldest was queued; 0 for not known yet.")


class LimitsReading(_Part):
    """How many jobs of a task may run at once, and what waits for that."""

    here: list[LimitReading] = Field([], max_length=64, description="In this process.")
    across: list[LimitReading] = Field([], max_length=64, description="Across all workers.")
    closed: dict[Name, Annotated[str, Field(max_length=1000)]] = Field(
        {}, max_length=64, description="Tasks that may not begin here just now, and why."
    )
    waiting: dict[Name, WaitingReading] = Field(
        {}, max_length=64, description="Tasks of which messages wait for a place."
    )


class Heartbeat(_Part):
    """A worker's sign of life."""

    consumer: Annotated[str, Field(max_length=4096)]
    host: Name = ""
    pid: Natural = 0
    version: Name = ""
    started_ms: Natural = Field(0, description="When the process began, Unix milliseconds.")
    seen_ms: Natural = Field(0, description="When it said this, Unix milliseconds.")
    every_s: Seconds = Field(0.0, description="Seconds until the next sign of life.")
    tasks: list[Name] = Field([], max_length=64, description="Tasks it has handlers for.")
    in_flight: Natural = Field(0, description="Jobs that it runs.")
    max_inflight: Natural = Field(0, description="Most jobs that it runs at once.")
    deferred: Natural = Field(0, description="Messages of its own that may not run yet.")
    running: list[RunningJob] = Field(
        [], max_length=MOST_NAMED, description="The jobs that have run for longest."
    )
    draining: bool = Field(False, description="It is stopping and takes nothing new.")
    holding: bool = Field(
        False,
        description="It takes nothing new because the box is short of memory or too hot, or "
        "because the queue is paused.",
    )
    holding_why: Annotated[str, Field(max_length=1000)] = ""
    paused: bool = Field(False, description="It takes nothing new because the queue is paused.")
    loop_lag_s: Seconds = Field(0.0, description="How late its event loop was at worst, lately.")
    rss_bytes: Natural = 0
    open_fds: Natural = 0
    cpu_s: Seconds = 0.0
    events: Natural = Field(0, description="Events that its handlers have emitted.")
    box: Box = Box()
    queue: QueueReading = QueueReading()
    tally: dict[Name, TaskNumbers] = Field({}, max_length=64)
    limits: LimitsReading = LimitsReading()
    model: ModelReading | None = Field(None, description="Its model server, where it needs one.")
    embedder: Name = Field("", description="The model that makes its vectors, if any does.")
    mcp: list[McpReading] = Field([], max_length=64, description="Its MCP servers.")
    webhooks: WebhooksReading | None = Field(
        None, description="Its deliveries to webhooks, where it delivers."
    )
    images: ImagesReading | None = Field(None, description="Its images, where it does them.")
    bullmq: list[BullmqReading] = Field([], max_length=64, description="Its queues of BullMQ.")

    @property
    def pressed(self) -> bool:
        """Whether memory or heat keep it from taking jobs, as far as one can tell."""
        return self.holding and not self.paused

    def age_s(self, now_s: float | None = None) -> float:
        """Seconds since it was said."""
        now = time.time() if now_s is None else now_s
        return max(0.0, now - self.seen_ms / 1000)

    def to_json(self) -> bytes:
        """As it is stored."""
        return codec.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def from_json(cls, raw: bytes | None, consumer: str) -> Heartbeat | None:
        """What is stored under a worker's name; None for nothing, and for what is no heartbeat."""
        if raw is None or len(raw) > MOST_BYTES:
            return None
        try:
            beat = cls.model_validate_json(raw)
        except ValidationError:
            return None
        return beat if beat.consumer == consumer else None

    @property
    def numbers(self) -> dict[str, TaskNumbers]:
        """Its tally, for tasks that the contract knows."""
        return {task: self.tally[task] for task in TASK_LABELS if task in self.tally}


async def read_all(client: Redis, keys: JobKeys) -> list[Heartbeat]:
    """Every worker that lives, by name; raises what keeps Redis from answering at all."""
    async with client.pipeline(transaction=False) as pipe:
        ask_names(pipe, keys)
        names = names_in((await replies_of(pipe))[0])
    if not names:
        return []
    async with client.pipeline(transaction=False) as pipe:
        ask_heartbeats(pipe, keys, names)
        return heartbeats_in((await replies_of(pipe))[0], names)


def ask_names(pipe: Pipeline, keys: JobKeys) -> None:
    """Add the question who was heard of."""
    pipe.zrevrange(keys.workers, 0, MOST_WORKERS - 1)


def names_in(reply: object) -> list[str]:
    """Who was heard of; nobody, where the question was refused."""
    return [codec.text(name) for name in reply] if isinstance(reply, list) else []


def ask_heartbeats(pipe: Pipeline, keys: JobKeys, names: Sequence[str]) -> None:
    """Add the question what they said."""
    pipe.mget([keys.worker(name) for name in names])


def heartbeats_in(reply: object, names: Sequence[str]) -> list[Heartbeat]:
    """What they said, by name; those who are silent, or talk nonsense, are left out."""
    if not isinstance(reply, list):
        return []
    found = (Heartbeat.from_json(raw, name) for raw, name in zip(reply, names))
    return sorted((beat for beat in found if beat is not None), key=lambda beat: beat.consumer)
