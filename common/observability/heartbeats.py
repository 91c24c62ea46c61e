"""The heartbeat of a worker: what the worker writes, and how a gateway validates and reads it.

The types are plain dataclasses, which a worker fills without validation. The constraints in their
annotations are checked by the reader, which may be of another version than the writer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from common import codec
from common.contracts.jobs import JobKeys
from common.contracts.models import McpState
from common.contracts.workers import (
    FIRST_TOKEN_BOUNDS,
    HISTOGRAM_BOUNDS,
    MOST_NAMED,
    MOST_WORKERS,
    TASK_LABELS,
    ModelState,
    TaskCounter,
    TaskHistogram,
)
from common.jobs.queue_stats import QueueReading
from common.process.host import HostReadings
from common.redis.connection import execute_pipeline

#: A longer text is none of ours.
MOST_BYTES = 256 * 1024

Name = Annotated[str, Field(max_length=256)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_NO_READING: Final = QueueReading()
#: The JSON schema of a mapping that is empty by default; `default_factory` does not show there.
_EMPTY_DEFAULT: Final[dict[str, Any]] = {"default": {}}


@dataclass(frozen=True)
class RunningJob:
    """A job that a worker runs now."""

    job_id: Name
    task: Name
    attempt: Natural
    since_ms: Annotated[Natural, Field(description="When the attempt began, Unix milliseconds.")]


@dataclass(frozen=True)
class Box:
    """The machine a worker runs on; what it has no sensor for is left out."""

    memory_pressure: Annotated[
        float | None,
        Field(description="Percent of time in which every task stood still for want of memory."),
    ] = None
    available_bytes: Annotated[
        Natural | None, Field(description="Memory that is still to be had.")
    ] = None
    temperature_c: Annotated[
        float | None, Field(description="The hottest sensor, degrees Celsius.")
    ] = None
    hottest: Annotated[Name | None, Field(description="That sensor's name.")] = None
    gpu_load: Annotated[float | None, Field(description="How busy the GPU is, from 0 to 1.")] = None
    power_mode: Annotated[Name | None, Field(description="The Jetson's power mode.")] = None

    @classmethod
    def from_readings(cls, readings: HostReadings) -> Box:
        """What was read of a machine."""
        return cls(**asdict(readings))


@dataclass(frozen=True)
class Histogram:
    """How many values fell between which bounds of the contract."""

    counts: Annotated[Sequence[Natural], Field(max_length=64)]
    sum: Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class TaskNumbers:
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

    def count(self, count: TaskCounter) -> int:
        number: int = getattr(self, count.value)
        return number

    def histogram(self, spread: TaskHistogram) -> Histogram | None:
        """One of its histograms; None where it is empty, or has other buckets than ours."""
        histogram: Histogram | None = getattr(self, spread.value)
        if histogram is None or len(histogram.counts) != len(HISTOGRAM_BOUNDS[spread]) + 1:
            return None
        return histogram


@dataclass(frozen=True)
class ModelReading:
    """A worker's model server, and what it has done for the worker since that began."""

    state: ModelState
    reason: Annotated[
        Annotated[str, Field(max_length=1000)], Field(description="What is wrong.")
    ] = ""
    url: Annotated[Name, Field(description="Where it is; credentials are left out.")] = ""
    name: Annotated[Name, Field(description="The model that it is asked for.")] = ""
    slots: Annotated[Natural, Field(description="Answers that it makes at once.")] = 0
    busy: Annotated[Natural, Field(description="Answers that it makes now, for this worker.")] = 0
    waiting: Annotated[
        Natural, Field(description="Requests of running jobs that wait for a slot.")
    ] = 0
    answers: Natural = 0
    failures: Natural = 0
    prompt_tokens: Natural = 0
    completion_tokens: Natural = 0
    cached_tokens: Annotated[
        Natural, Field(description="Of the prompt's, those it remembered.")
    ] = 0
    first_token: Annotated[Histogram | None, Field(description="Seconds until answers began.")] = (
        None
    )

    @property
    def first_token_histogram(self) -> Histogram | None:
        """That histogram; None where it has other buckets than ours."""
        found = self.first_token
        fits = found is not None and len(found.counts) == len(FIRST_TOKEN_BOUNDS) + 1
        return found if fits else None


@dataclass(frozen=True)
class McpReading:
    """An MCP server that a worker was given."""

    name: Name
    state: McpState
    reason: Annotated[
        Annotated[str, Field(max_length=1000)], Field(description="What is wrong.")
    ] = ""
    tools: Annotated[Natural, Field(description="Tools that it has.")] = 0
    restarts: Annotated[Natural, Field(description="How often it was begun again.")] = 0


#: Counters of the following.
WEBHOOK_OUTCOMES = ("delivered", "retried", "failed")


@dataclass(frozen=True)
class WebhooksReading:
    """Deliveries to webhooks that a worker has tried since it began."""

    delivered: Natural = 0
    retried: Annotated[Natural, Field(description="Failed, and tried again later.")] = 0
    failed: Annotated[Natural, Field(description="Given up.")] = 0
    under_way: Natural = 0


@dataclass(frozen=True)
class ImagesReading:
    """Images that a worker has processed since it began, and who looks at them."""

    detector: Annotated[
        Name, Field(description="Who looks for faces and plates; `none` for nobody.")
    ] = ""
    detector_why: Annotated[
        Annotated[str, Field(max_length=1000)],
        Field(description="Why nobody does, and what would change that."),
    ] = ""
    blur: Annotated[Name, Field(description="How what is found is made unrecognisable.")] = ""
    places: Annotated[Natural, Field(description="Images that it processes at once.")] = 0
    busy: Annotated[Natural, Field(description="Images that it processes now.")] = 0
    waiting: Annotated[Natural, Field(description="Running jobs that wait for a place.")] = 0
    processed: Natural = 0
    failed: Natural = 0


@dataclass(frozen=True)
class BullmqReading:
    """A queue of BullMQ that a worker takes jobs from, and what it has done of it."""

    queue: Name
    places: Annotated[Natural, Field(description="Jobs of it that run at once at most.")] = 0
    running: Natural = 0
    started: Natural = 0
    succeeded: Natural = 0
    failed: Natural = 0
    canceled: Natural = 0
    retried: Natural = 0
    postponed: Natural = 0
    released: Annotated[Natural, Field(description="Handed back by a worker that stopped.")] = 0
    stalled: Annotated[Natural, Field(description="Put back because their worker had died.")] = 0
    locks_lost: Annotated[
        Natural, Field(description="Stopped here because another worker has them.")
    ] = 0
    errors: Annotated[Natural, Field(description="Looks for jobs that Redis had no answer to.")] = 0


@dataclass(frozen=True)
class LimitReading:
    """Places that some tasks share, such as `chat+plan+code`."""

    name: Name
    places: Natural
    running: Annotated[Natural, Field(description="Jobs of this worker that have one.")] = 0


@dataclass(frozen=True)
class WaitingReading:
    """Messages of a task that wait for a place, wherever there will be one."""

    number: Natural
    oldest_ms: Annotated[
        Natural, Field(description="When the oldest was queued; 0 for not known yet.")
    ] = 0


@dataclass(frozen=True)
class LimitsReading:
    """How many jobs of a task may run at once, and what waits for that."""

    here: Annotated[
        Sequence[LimitReading], Field(max_length=64, description="In this process.")
    ] = ()
    across: Annotated[
        Sequence[LimitReading], Field(max_length=64, description="Across all workers.")
    ] = ()
    closed: Annotated[
        Mapping[Name, Annotated[str, Field(max_length=1000)]],
        Field(
            max_length=64,
            description="Tasks that may not begin here just now, and why.",
            json_schema_extra=_EMPTY_DEFAULT,
        ),
    ] = field(default_factory=dict)
    waiting: Annotated[
        Mapping[Name, WaitingReading],
        Field(
            max_length=64,
            description="Tasks of which messages wait for a place.",
            json_schema_extra=_EMPTY_DEFAULT,
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Heartbeat:
    """A worker's sign of life."""

    consumer: Annotated[str, Field(max_length=4096)]
    host: Name = ""
    pid: Natural = 0
    version: Name = ""
    started_ms: Annotated[
        Natural, Field(description="When the process began, Unix milliseconds.")
    ] = 0
    seen_ms: Annotated[Natural, Field(description="When it said this, Unix milliseconds.")] = 0
    every_s: Annotated[Seconds, Field(description="Seconds until the next sign of life.")] = 0.0
    tasks: Annotated[
        Sequence[Name], Field(max_length=64, description="Tasks it has handlers for.")
    ] = ()
    in_flight: Annotated[Natural, Field(description="Jobs that it runs.")] = 0
    max_inflight: Annotated[Natural, Field(description="Most jobs that it runs at once.")] = 0
    deferred: Annotated[Natural, Field(description="Messages of its own that may not run yet.")] = 0
    running: Annotated[
        Sequence[RunningJob],
        Field(max_length=MOST_NAMED, description="The jobs that have run for longest."),
    ] = ()
    draining: Annotated[bool, Field(description="It is stopping and takes nothing new.")] = False
    holding: Annotated[
        bool,
        Field(
            description="It takes nothing new because the box is short of memory or too hot, or "
            "because the queue is paused."
        ),
    ] = False
    holding_why: Annotated[str, Field(max_length=1000)] = ""
    loop_lag_s: Annotated[
        Seconds, Field(description="How late its event loop was at worst, lately.")
    ] = 0.0
    rss_bytes: Natural = 0
    open_fds: Natural = 0
    cpu_s: Seconds = 0.0
    events: Annotated[Natural, Field(description="Events that its handlers have emitted.")] = 0
    box: Box = Box()
    queue: QueueReading = _NO_READING
    tally: Annotated[
        Mapping[Name, TaskNumbers], Field(max_length=64, json_schema_extra=_EMPTY_DEFAULT)
    ] = field(default_factory=dict)
    limits: LimitsReading = LimitsReading()
    paused: Annotated[
        bool, Field(description="It takes nothing new because the queue is paused.")
    ] = False
    model: Annotated[
        ModelReading | None, Field(description="Its model server, where it needs one.")
    ] = None
    embedder: Annotated[
        Name, Field(description="The model that makes its vectors, if any does.")
    ] = ""
    mcp: Annotated[Sequence[McpReading], Field(max_length=64, description="Its MCP servers.")] = ()
    webhooks: Annotated[
        WebhooksReading | None, Field(description="Its deliveries to webhooks, where it delivers.")
    ] = None
    images: Annotated[
        ImagesReading | None, Field(description="Its images, where it does them.")
    ] = None
    bullmq: Annotated[
        Sequence[BullmqReading], Field(max_length=64, description="Its queues of BullMQ.")
    ] = ()

    @property
    def under_pressure(self) -> bool:
        """Whether memory or heat keep it from taking jobs, as far as one can tell."""
        return self.holding and not self.paused

    def age_s(self, now_s: float | None = None) -> float:
        now = time.time() if now_s is None else now_s
        return max(0.0, now - self.seen_ms / 1000)

    def to_json(self) -> bytes:
        return codec.dumps(_to_plain(self))

    @classmethod
    def from_json(cls, raw: bytes | None, consumer: str) -> Heartbeat | None:
        """What is stored under a worker's name; None for nothing, and for what is no heartbeat."""
        if raw is None or len(raw) > MOST_BYTES:
            return None
        try:
            beat = _reader().validate_json(raw)
        except ValidationError:
            return None
        return beat if beat.consumer == consumer else None

    @property
    def task_numbers(self) -> dict[str, TaskNumbers]:
        """Its tally, for tasks that the contract knows."""
        return {task: self.tally[task] for task in TASK_LABELS if task in self.tally}


@cache
def _reader() -> TypeAdapter[Heartbeat]:
    """Validates heartbeats; built by the first process that reads one, which no worker does.

    Unknown members are ignored: another version may know more.
    """
    return TypeAdapter(Heartbeat)


def _to_plain(value: Any) -> Any:
    """Convert to dicts and lists; members that are None are left out."""
    if is_dataclass(value):
        return _drop_none({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return _drop_none(value)
    if isinstance(value, (list, tuple)):
        return [_to_plain(part) for part in value]
    return value


def _drop_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _to_plain(part) for name, part in members.items() if part is not None}


#: Members of a heartbeat that services may report.
HEARTBEAT_FIELDS: Final = frozenset(each.name for each in fields(Heartbeat))


async def read_heartbeats(client: Redis, keys: JobKeys) -> list[Heartbeat]:
    """Every worker that lives, by name; raises what keeps Redis from answering at all."""
    async with client.pipeline(transaction=False) as pipe:
        add_names_query(pipe, keys)
        names = parse_worker_names((await execute_pipeline(pipe))[0])
    if not names:
        return []
    async with client.pipeline(transaction=False) as pipe:
        add_heartbeats_query(pipe, keys, names)
        return parse_heartbeats((await execute_pipeline(pipe))[0], names)


def add_names_query(pipe: Pipeline, keys: JobKeys) -> None:
    """Add the question who was heard of."""
    pipe.zrevrange(keys.workers, 0, MOST_WORKERS - 1)


def parse_worker_names(reply: object) -> list[str]:
    """Who was heard of; nobody, where the question was refused."""
    return [codec.decode_text(name) for name in reply] if isinstance(reply, list) else []


def add_heartbeats_query(pipe: Pipeline, keys: JobKeys, names: Sequence[str]) -> None:
    """Add the question what they said."""
    pipe.mget([keys.worker(name) for name in names])


def parse_heartbeats(reply: object, names: Sequence[str]) -> list[Heartbeat]:
    """What they said, by name; those who are silent, or talk nonsense, are left out."""
    if not isinstance(reply, list):
        return []
    found = (Heartbeat.from_json(raw, name) for raw, name in zip(reply, names))
    return sorted((beat for beat in found if beat is not None), key=lambda beat: beat.consumer)
