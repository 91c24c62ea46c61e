"""A worker's sign of life as it says it, in plain values.

`common.heartbeats` is how it is read, by gateways of perhaps another version: that checks it, and
needs pydantic for it, which a worker does without. Both have the same members; a test sees to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from common import codec
from common.contracts.tools import McpState
from common.contracts.workers import ModelState
from common.host import Readings
from common.queue_reading import QueueReading


@dataclass(frozen=True)
class RunningJob:
    """A job that it runs now."""

    job_id: str
    task: str
    attempt: int
    since_ms: int


@dataclass(frozen=True)
class Histogram:
    """How many values fell between which bounds of the contract."""

    counts: Sequence[int]
    sum: float


@dataclass(frozen=True)
class ModelReading:
    """Its model server, and what that has done for it."""

    state: ModelState
    reason: str = ""
    url: str = ""
    name: str = ""
    slots: int = 0
    busy: int = 0
    waiting: int = 0
    answers: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token: Histogram | None = None


@dataclass(frozen=True)
class McpReading:
    """An MCP server that it was given."""

    name: str
    state: McpState
    reason: str = ""
    tools: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class WebhooksReading:
    """Deliveries to webhooks that it has tried."""

    delivered: int = 0
    retried: int = 0
    failed: int = 0
    under_way: int = 0


@dataclass(frozen=True)
class ImagesReading:
    """Images that it has processed, and who looks at them."""

    detector: str = ""
    detector_why: str = ""
    blur: str = ""
    places: int = 0
    busy: int = 0
    waiting: int = 0
    processed: int = 0
    failed: int = 0


@dataclass(frozen=True)
class BullmqReading:
    """A queue of BullMQ that it takes jobs from, and what it has done of it."""

    queue: str
    places: int = 0
    running: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    retried: int = 0
    postponed: int = 0
    released: int = 0
    stalled: int = 0
    locks_lost: int = 0
    errors: int = 0


@dataclass(frozen=True)
class LimitReading:
    """Places that some tasks share."""

    name: str
    places: int
    running: int = 0


@dataclass(frozen=True)
class WaitingReading:
    """Messages of a task that wait for a place."""

    number: int
    oldest_ms: int = 0


@dataclass(frozen=True)
class LimitsReading:
    """How many jobs of a task may run at once, and what waits for that."""

    here: Sequence[LimitReading] = ()
    across: Sequence[LimitReading] = ()
    closed: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, WaitingReading] = field(default_factory=dict)


@dataclass(frozen=True)
class Sign:
    """All of it."""

    consumer: str
    host: str
    pid: int
    version: str
    started_ms: int
    seen_ms: int
    every_s: float
    tasks: Sequence[str]
    in_flight: int
    max_inflight: int
    deferred: int
    running: Sequence[RunningJob]
    draining: bool
    holding: bool
    holding_why: str
    loop_lag_s: float
    rss_bytes: int
    open_fds: int
    cpu_s: float
    events: int
    box: Readings
    queue: QueueReading
    #: By task, as `worker.tally` tells it.
    tally: Mapping[str, Mapping[str, object]]
    limits: LimitsReading
    # What services say, where there are any.
    paused: bool = False
    model: ModelReading | None = None
    embedder: str = ""
    mcp: Sequence[McpReading] = ()
    webhooks: WebhooksReading | None = None
    images: ImagesReading | None = None
    bullmq: Sequence[BullmqReading] = ()

    def to_json(self) -> bytes:
        """As it is stored."""
        return codec.dumps(_told(self))


#: What services may say, by member.
MEMBERS = frozenset(each.name for each in fields(Sign))


def _told(value: Any) -> Any:
    """The same in dicts and lists; what is not known is left out."""
    if is_dataclass(value):
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: _told(part) for name, part in pairs if part is not None}
    if isinstance(value, Mapping):
        return {name: _told(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_told(part) for part in value]
    return value
