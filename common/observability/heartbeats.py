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

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.models import McpState
from sluice.common.contracts.workers import (
    FIRST_TOKEN_BOUNDS,
    HISTOGRAM_BOUNDS,
    MOST_NAMED,
    MOST_WORKERS,
    TASK_LABELS,
    ModelState,
    TaskCounter,
    TaskHistogram,
)
from sluice.common.jobs.queue_stats import QueueReading
from sluice.common.process.host import HostReadings
from sluice.common.redis.connection import execute_pipeline

#: Longer heartbeats are ignored.
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
class MachineReading:
    """The host of a worker; values without a sensor are left out."""

    memory_pressure: Annotated[
        float | None,
        Field(description="Percent of time in which all tasks were stalled on memory (PSI)."),
    ] = None
    available_bytes: Annotated[Natural | None, Field(description="Available memory, bytes.")] = None
    temperature_c: Annotated[
        float | None, Field(description="Temperature of the hottest sensor, degrees Celsius.")
    ] = None
    hottest: Annotated[Name | None, Field(description="Name of the hottest sensor.")] = None
    gpu_load: Annotated[float | None, Field(description="GPU utilisation, from 0 to 1.")] = None
    power_mode: Annotated[Name | None, Field(description="Power mode of a Jetson.")] = None

    @classmethod
    def from_readings(cls, readings: HostReadings) -> MachineReading:
        return cls(**asdict(readings))


@dataclass(frozen=True)
class Histogram:
    """Number of values per bucket, with bounds from the contract."""

    counts: Annotated[Sequence[Natural], Field(max_length=64)]
    sum: Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class TaskNumbers:
    """Counters and histograms of one task since the worker started."""

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
        """One of the histograms; None if it is empty or has other buckets than this version."""
        histogram: Histogram | None = getattr(self, spread.value)
        if histogram is None or len(histogram.counts) != len(HISTOGRAM_BOUNDS[spread]) + 1:
            return None
        return histogram


@dataclass(frozen=True)
class ModelReading:
    """The model server of a worker, with counters since the worker started."""

    state: ModelState
    reason: Annotated[
        Annotated[str, Field(max_length=1000)], Field(description="What is wrong, if anything.")
    ] = ""
    url: Annotated[Name, Field(description="URL without credentials.")] = ""
    name: Annotated[Name, Field(description="Name of the model.")] = ""
    slots: Annotated[
        Natural, Field(description="Number of requests that the server handles at once.")
    ] = 0
    busy: Annotated[Natural, Field(description="Requests of this worker in progress.")] = 0
    waiting: Annotated[
        Natural, Field(description="Requests of running jobs that are waiting for a slot.")
    ] = 0
    answers: Natural = 0
    failures: Natural = 0
    prompt_tokens: Natural = 0
    completion_tokens: Natural = 0
    cached_tokens: Annotated[
        Natural, Field(description="Prompt tokens that the server had cached.")
    ] = 0
    first_token: Annotated[
        Histogram | None, Field(description="Seconds until the first token of a response.")
    ] = None

    @property
    def first_token_histogram(self) -> Histogram | None:
        """That histogram; None if it has other buckets than this version."""
        found = self.first_token
        fits = found is not None and len(found.counts) == len(FIRST_TOKEN_BOUNDS) + 1
        return found if fits else None


@dataclass(frozen=True)
class McpReading:
    """An MCP server of a worker."""

    name: Name
    state: McpState
    reason: Annotated[
        Annotated[str, Field(max_length=1000)], Field(description="What is wrong, if anything.")
    ] = ""
    tools: Annotated[Natural, Field(description="Number of tools.")] = 0
    restarts: Annotated[Natural, Field(description="Number of restarts.")] = 0


@dataclass(frozen=True)
class ToolsReading:
    """The tools that a worker offers."""

    digest: Annotated[Name, Field(description="Digest of the list, which names its key.")]
    number: Annotated[Natural, Field(description="Number of tools.")] = 0


#: Counters of WebhooksReading.
WEBHOOK_OUTCOMES = ("delivered", "retried", "failed")


@dataclass(frozen=True)
class WebhooksReading:
    """Webhook deliveries of a worker since it started."""

    delivered: Natural = 0
    retried: Annotated[Natural, Field(description="Failed deliveries that will be retried.")] = 0
    failed: Annotated[Natural, Field(description="Deliveries without retries left.")] = 0
    under_way: Natural = 0


@dataclass(frozen=True)
class ImagesReading:
    """Image processing of a worker since it started."""

    detector: Annotated[
        Name, Field(description="Detector of faces and number plates; `none` if there is none.")
    ] = ""
    detector_why: Annotated[
        Annotated[str, Field(max_length=1000)],
        Field(description="Why there is no detector, and how to get one."),
    ] = ""
    blur: Annotated[Name, Field(description="How detected regions are obscured.")] = ""
    formats: Annotated[
        Annotated[Sequence[Name], Field(max_length=64)] | None,
        Field(description="Formats that are enabled and installed."),
    ] = None
    places: Annotated[Natural, Field(description="Slots: images processed at once.")] = 0
    busy: Annotated[Natural, Field(description="Images in progress.")] = 0
    waiting: Annotated[Natural, Field(description="Running jobs that are waiting for a slot.")] = 0
    processed: Natural = 0
    failed: Natural = 0


@dataclass(frozen=True)
class BullmqReading:
    """A BullMQ queue that a worker consumes, with counters since the worker started."""

    queue: Name
    places: Annotated[Natural, Field(description="Slots: jobs of the queue run at once.")] = 0
    running: Natural = 0
    started: Natural = 0
    succeeded: Natural = 0
    failed: Natural = 0
    canceled: Natural = 0
    retried: Natural = 0
    postponed: Natural = 0
    released: Annotated[Natural, Field(description="Released when the worker stopped.")] = 0
    stalled: Annotated[
        Natural, Field(description="Stalled jobs that the worker put back into the queue.")
    ] = 0
    locks_lost: Annotated[
        Natural, Field(description="Stopped because another worker took the job over.")
    ] = 0
    errors: Annotated[Natural, Field(description="Fetches that failed.")] = 0


@dataclass(frozen=True)
class LimitReading:
    """A concurrency limit shared by some tasks, such as `chat+plan+code`."""

    name: Name
    places: Natural
    running: Annotated[Natural, Field(description="Jobs of this worker that use a slot.")] = 0


@dataclass(frozen=True)
class WaitingReading:
    """Messages of a task in its wait queue."""

    number: Natural
    oldest_ms: Annotated[
        Natural,
        Field(description="When the oldest was queued, Unix milliseconds; 0 if unknown."),
    ] = 0


@dataclass(frozen=True)
class LimitsReading:
    """Concurrency limits of tasks, and the messages that wait because of them."""

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
            description="Tasks that may not start on this worker now, with the reason.",
            json_schema_extra=_EMPTY_DEFAULT,
        ),
    ] = field(default_factory=dict)
    waiting: Annotated[
        Mapping[Name, WaitingReading],
        Field(
            max_length=64,
            description="Tasks with messages that are waiting for a slot.",
            json_schema_extra=_EMPTY_DEFAULT,
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Heartbeat:
    """The state of a worker, which it publishes at a fixed interval."""

    consumer: Annotated[str, Field(max_length=4096)]
    host: Name = ""
    pid: Natural = 0
    version: Name = ""
    started_ms: Annotated[
        Natural, Field(description="When the process started, Unix milliseconds.")
    ] = 0
    seen_ms: Annotated[
        Natural, Field(description="When this heartbeat was sent, Unix milliseconds.")
    ] = 0
    every_s: Annotated[Seconds, Field(description="Seconds between two heartbeats.")] = 0.0
    tasks: Annotated[
        Sequence[Name], Field(max_length=64, description="Tasks with a handler on this worker.")
    ] = ()
    in_flight: Annotated[Natural, Field(description="Running jobs.")] = 0
    max_inflight: Annotated[Natural, Field(description="Maximum number of running jobs.")] = 0
    deferred: Annotated[
        Natural, Field(description="Messages that the worker has read but may not start yet.")
    ] = 0
    running: Annotated[
        Sequence[RunningJob],
        Field(max_length=MOST_NAMED, description="The jobs that have been running longest."),
    ] = ()
    draining: Annotated[
        bool, Field(description="The worker is stopping and takes no new jobs.")
    ] = False
    holding: Annotated[
        bool,
        Field(
            description="The worker takes no new jobs because the host is short of memory or too "
            "hot, or because the queue is paused."
        ),
    ] = False
    holding_why: Annotated[str, Field(max_length=1000)] = ""
    loop_lag_s: Annotated[Seconds, Field(description="Longest recent delay of the event loop.")] = (
        0.0
    )
    rss_bytes: Natural = 0
    open_fds: Natural = 0
    cpu_s: Seconds = 0.0
    events: Annotated[Natural, Field(description="Events emitted by handlers.")] = 0
    box: MachineReading = MachineReading()
    queue: QueueReading = _NO_READING
    tally: Annotated[
        Mapping[Name, TaskNumbers], Field(max_length=64, json_schema_extra=_EMPTY_DEFAULT)
    ] = field(default_factory=dict)
    limits: LimitsReading = LimitsReading()
    paused: Annotated[
        bool, Field(description="The worker takes no new jobs because the queue is paused.")
    ] = False
    model: Annotated[
        ModelReading | None, Field(description="The model server, if the worker uses one.")
    ] = None
    embedder: Annotated[
        Name, Field(description="Name of the embedding model, if the worker has one.")
    ] = ""
    mcp: Annotated[Sequence[McpReading], Field(max_length=64, description="MCP servers.")] = ()
    tools: Annotated[
        ToolsReading | None, Field(description="Its tools; `GET /v1/tools` lists them.")
    ] = None
    webhooks: Annotated[
        WebhooksReading | None, Field(description="Webhook deliveries, if the worker sends any.")
    ] = None
    images: Annotated[
        ImagesReading | None, Field(description="Image processing, if the worker does any.")
    ] = None
    bullmq: Annotated[
        Sequence[BullmqReading], Field(max_length=64, description="BullMQ queues.")
    ] = ()

    @property
    def under_pressure(self) -> bool:
        """True if memory or heat, and not a pause, keeps the worker from taking jobs."""
        return self.holding and not self.paused

    def age_s(self, now_s: float | None = None) -> float:
        now = time.time() if now_s is None else now_s
        return max(0.0, now - self.seen_ms / 1000)

    def to_json(self) -> bytes:
        return codec.dumps(_to_plain(self))

    @classmethod
    def from_json(cls, raw: bytes | None, consumer: str) -> Heartbeat | None:
        """Parse the heartbeat of a worker; None if it is missing or invalid."""
        if raw is None or len(raw) > MOST_BYTES:
            return None
        try:
            beat = _reader().validate_json(raw)
        except ValidationError:
            return None
        return beat if beat.consumer == consumer else None

    @property
    def task_numbers(self) -> dict[str, TaskNumbers]:
        """The counters of all tasks that this version knows."""
        return {task: self.tally[task] for task in TASK_LABELS if task in self.tally}


@cache
def _reader() -> TypeAdapter[Heartbeat]:
    """The validator. It is built on first use: workers do not read heartbeats.

    Unknown members are ignored: the writer may be of a newer version.
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
    """The heartbeats of all live workers, sorted by name; raises errors of Redis."""
    async with client.pipeline(transaction=False) as pipe:
        add_names_query(pipe, keys)
        names = parse_worker_names((await execute_pipeline(pipe))[0])
    if not names:
        return []
    async with client.pipeline(transaction=False) as pipe:
        add_heartbeats_query(pipe, keys, names)
        return parse_heartbeats((await execute_pipeline(pipe))[0], names)


def add_names_query(pipe: Pipeline, keys: JobKeys) -> None:
    """Add the query for the names of workers with a recent heartbeat."""
    pipe.zrevrange(keys.workers, 0, MOST_WORKERS - 1)


def parse_worker_names(reply: object) -> list[str]:
    """The names of workers; empty if the query was refused."""
    return [codec.decode_text(name) for name in reply] if isinstance(reply, list) else []


def add_heartbeats_query(pipe: Pipeline, keys: JobKeys, names: Sequence[str]) -> None:
    """Add the query for the heartbeats of these workers."""
    pipe.mget([keys.worker(name) for name in names])


def parse_heartbeats(reply: object, names: Sequence[str]) -> list[Heartbeat]:
    """The heartbeats, sorted by name, without missing and invalid ones."""
    if not isinstance(reply, list):
        return []
    found = (Heartbeat.from_json(raw, name) for raw, name in zip(reply, names))
    return sorted((beat for beat in found if beat is not None), key=lambda beat: beat.consumer)
