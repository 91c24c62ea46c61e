"""A worker's sign of life as it says it, in plain values.

`common.heartbeats` is how it is read, by gateways of perhaps another version: that checks it, and
needs pydantic for it, which a worker does without. Both have the same members; a test sees to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.tools import McpState
from common.contracts.workers import ModelState
from common.host import Readings
from common.queue_reading import QueueReading

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class RunningJob(NamedTuple):
    """A job that it runs now."""

    job_id: str
    task: str
    attempt: int
    since_ms: int


class Histogram(NamedTuple):
    """How many values fell between which bounds of the contract."""

    counts: Sequence[int]
    sum: float


class ModelReading(NamedTuple):
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


class McpReading(NamedTuple):
    """An MCP server that it was given."""

    name: str
    state: McpState
    reason: str = ""
    tools: int = 0
    restarts: int = 0


class WebhooksReading(NamedTuple):
    """Deliveries to webhooks that it has tried."""

    delivered: int = 0
    retried: int = 0
    failed: int = 0
    under_way: int = 0


class ImagesReading(NamedTuple):
    """Images that it has processed, and who looks at them."""

    detector: str = ""
    detector_why: str = ""
    blur: str = ""
    places: int = 0
    busy: int = 0
    waiting: int = 0
    processed: int = 0
    failed: int = 0


class BullmqReading(NamedTuple):
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


class LimitReading(NamedTuple):
    """Places that some tasks share."""

    name: str
    places: int
    running: int = 0


class WaitingReading(NamedTuple):
    """Messages of a task that wait for a place."""

    number: int
    oldest_ms: int = 0


class LimitsReading(NamedTuple):
    """How many jobs of a task may run at once, and what waits for that."""

    here: Sequence[LimitReading] = ()
    across: Sequence[LimitReading] = ()
    closed: Mapping[str, str] = _NONE
    waiting: Mapping[str, WaitingReading] = _NONE


class Sign(NamedTuple):
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
MEMBERS = frozenset(Sign._fields)


def _told(value: Any) -> Any:
    """The same in dicts and lists; what is not known is left out."""
    if hasattr(value, "_asdict"):
        return _known(value._asdict())
    if is_dataclass(value):
        return _known({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return _known(value)
    if isinstance(value, (list, tuple)):
        return [_told(part) for part in value]
    return value


def _known(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _told(part) for name, part in members.items() if part is not None}
